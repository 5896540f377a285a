#include "core/pool/shape_graphs.hpp"

#include <algorithm>
#include <iterator>

#include "core/base/error.hpp"
#include "core/ort/library.hpp"
#include "core/policy/numbers.hpp"

namespace ortmulti {

std::shared_ptr<Runner> ShapeGraphs::take(const std::string& key) {
  const MutexLock lock(mutex_);
  for (bool waited = false;; waited = true) {
    given_back_.wait(mutex_, [&]() ORTMULTI_REQUIRES(mutex_) { return graphs_.contains(key) || !awaited(key); });
    const auto found = graphs_.find(key);
    if (found == graphs_.end()) {
      return nullptr;
    }
    const std::shared_ptr<Graph> graph = found->second;
    if (!graph->idle.empty()) {
      const auto best = best_of(graph->idle);
      NumberedRunner numbered = std::move(*best);
      graph->idle.erase(best);
      ++graph->under_way;
      if (waited || graph->idle.empty()) {
        graph->recent_waits = std::min(graph->recent_waits + 2, *numbers::graphs_recent_waits);
      }
      demand_.record_graph_run();
      graph->used = demand_.runs();
      Runner* const taken = numbered.runner.get();
      ++by_graphs_;
      return {taken, [self = shared_from_this(), graph, numbered = std::move(numbered)](Runner*) mutable {
                --self->by_graphs_;
                std::deque<NumberedRunner> surplus;  // freed without the lock
                const MutexLock giving_back(self->mutex_);
                --graph->under_way;
                graph->idle.push_front(std::move(numbered));
                surplus = take_surplus(*graph);
                self->given_back_.notify_all();
              }};
    }
    given_back_.wait(mutex_);
  }
}

std::deque<ShapeGraphs::NumberedRunner>::iterator ShapeGraphs::best_of(std::deque<NumberedRunner>& idle) {
  const auto idle_of = [&](std::size_t session) { return std::ranges::count(idle, session, &NumberedRunner::session); };
  return std::ranges::max_element(idle, {}, [&](const NumberedRunner& numbered) { return idle_of(numbered.session); });
}

std::deque<ShapeGraphs::NumberedRunner> ShapeGraphs::take_surplus(Graph& graph) {
  std::deque<NumberedRunner> surplus;
  const auto unworthy = std::ranges::stable_partition(
      graph.idle, [&](const NumberedRunner& numbered) { return numbered.session < graph.worth.limit(); });
  std::ranges::move(unworthy, std::back_inserter(surplus));
  graph.idle.erase(unworthy.begin(), unworthy.end());
  graph.sessions = std::min(graph.sessions, graph.worth.limit());
  return surplus;
}

bool ShapeGraphs::count_ordinary_run(const std::string& key) {
  const MutexLock lock(mutex_);
  const std::size_t by_graphs = rule_.runs_before_capture > 1 ? by_graphs_.load() : 0;  // with 1 a graph grows from few
  const std::size_t sessions = demand_.record_run(key, under_way_.load() + by_graphs);
  if (sessions == 0 || making_ || graphs_.contains(key)) {
    return false;
  }
  if (graphs_.size() >= rule_.max_shapes &&
      demand_.runs() - least_recently_used()->second->used <= *numbers::graphs_replaceable_after) {
    return false;
  }
  begin_making(key, std::min(sessions, std::max<std::size_t>(1, more_sessions())));
  return true;
}

bool ShapeGraphs::count_graph_run(const std::string& key) {
  const MutexLock lock(mutex_);
  const auto found = graphs_.find(key);
  if (found == graphs_.end()) {
    return false;
  }
  Graph& graph = *found->second;
  const Clock::time_point now = now_();
  const bool waited = graph.recent_waits > 0;
  graph.recent_waits -= waited ? 1 : 0;
  // Once another number of sessions is tried, a run behind another one of its session has waited, too.
  const bool crowded = waited || (graph.worth.choosing() && graph.under_way >= graph.sessions);
  if (making_) {
    graph.worth.leave_out();
  }
  if (!graph.worth.record(now, 1, crowded, std::min(*numbers::graphs_max_sessions, graph.sessions + more_sessions()))) {
    return false;
  }
  begin_making(key, 1);
  return true;
}

std::size_t ShapeGraphs::sessions() const {
  std::size_t all = 0;
  for (const auto& [key, graph] : graphs_) {
    all += graph->sessions;
  }
  return all;
}

std::size_t ShapeGraphs::more_sessions() const {
  return *numbers::graphs_max_sessions_of_all - std::min(*numbers::graphs_max_sessions_of_all, sessions());
}

void ShapeGraphs::begin_making(const std::string& key, std::size_t sessions) {
  making_ = std::make_unique<Making>(Making{.key = key, .sessions = sessions, .sample = {}});
  is_making_ = true;
}

std::shared_ptr<ShapeGraphs::Graph> ShapeGraphs::end_making(const std::string& key) {
  const auto found = graphs_.find(key);
  making_.reset();
  is_making_ = false;
  given_back_.notify_all();
  return found == graphs_.end() ? nullptr : found->second;
}

bool ShapeGraphs::ended_without_sessions(const std::string& key, const std::string& reason) {
  const bool cancelled = making_ && making_->cancelled;
  const auto graph = end_making(key);
  if (graph) {
    graph->worth.try_more(now_(), reason);
  } else if (cancelled) {
    demand_.forget(key);
  }
  return graph || cancelled;
}

bool ShapeGraphs::cancelled() const {
  const MutexLock lock(mutex_);
  return making_ && making_->cancelled;
}

void ShapeGraphs::not_now(const std::string& key, const std::string& reason) {
  const MutexLock lock(mutex_);
  if (!ended_without_sessions(key, reason)) {
    demand_.postpone(key);
    why_not_ = reason;
  }
}

ShapeGraphs::Graphs::iterator ShapeGraphs::least_recently_used() {
  return std::ranges::min_element(graphs_, {}, [](const auto& each) { return each.second->used; });
}

void ShapeGraphs::want(const std::string& key, Sample sample) {
  std::size_t sessions = 0;
  {
    const MutexLock lock(mutex_);
    making_->sample = std::move(sample);
    sessions = making_->sessions;
  }
  wanted_(shared_from_this(), key, sessions);
}

const ShapeGraphs::Sample& ShapeGraphs::wanted_sample() const {
  const MutexLock lock(mutex_);
  return making_->sample;
}

std::vector<std::pair<std::string, std::vector<std::int64_t>>> ShapeGraphs::wanted_shapes() const {
  const MutexLock lock(mutex_);
  std::vector<std::pair<std::string, std::vector<std::int64_t>>> shapes;
  for (const auto& [name, value] : making_->sample.inputs) {
    shapes.emplace_back(name, value.GetTensorTypeAndShapeInfo().GetShape());
  }
  return shapes;
}

void ShapeGraphs::add(const std::string& key, GraphSessions made) {
  std::shared_ptr<Graph> oldest;  // freed without the lock, as are the runners if drop_all() was called
  const MutexLock lock(mutex_);
  const bool cancelled = making_->cancelled;
  std::shared_ptr<Graph> graph = end_making(key);
  if (cancelled) {
    demand_.forget(key);
  }
  if (cancelled || demand_.refused(key)) {
    return;
  }
  if (graph) {
    graph->worth.try_more(now_(), "");
  } else {
    if (graphs_.size() >= rule_.max_shapes) {
      const auto found = least_recently_used();
      oldest = found->second;
      demand_.forget(found->first);
      graphs_.erase(found);
    }
    graph = graphs_.emplace(key, std::make_shared<Graph>(made.runners.size())).first->second;
  }
  for (std::size_t i = 0; i < *numbers::graphs_runners; ++i) {
    for (std::size_t session = 0; session < made.runners.size(); ++session) {
      graph->idle.push_back({std::move(made.runners[session].at(i)), graph->sessions + session});
    }
  }
  graph->sessions += made.runners.size();
  graph->recent_waits = 0;  // were for another number of sessions
  graph->bytes_of_each = made.bytes_of_each;
  demand_.succeeded();
  why_not_.clear();
  given_back_.notify_all();
}

void ShapeGraphs::not_made(const std::string& key, const std::string& reason) {
  const MutexLock lock(mutex_);
  if (!ended_without_sessions(key, reason)) {
    refuse(key, reason);
  }
}

void ShapeGraphs::drop(const std::string& key, const std::string& reason) {
  std::shared_ptr<Graph> gone;  // freed without the lock
  const MutexLock lock(mutex_);
  if (const auto found = graphs_.find(key); found != graphs_.end()) {
    gone = found->second;
    graphs_.erase(found);
    given_back_.notify_all();
    refuse(key, reason);
  }
}

bool ShapeGraphs::drop_all() {
  Graphs gone;  // freed without the lock
  const MutexLock lock(mutex_);
  gone.swap(graphs_);
  if (making_) {
    making_->cancelled = true;
  }
  for (const auto& [key, graph] : gone) {
    demand_.forget(key);
  }
  given_back_.notify_all();
  return !gone.empty();
}

GraphCounts ShapeGraphs::counts() const {
  const MutexLock lock(mutex_);
  GraphCounts counts{.shapes = graphs_.size(), .sessions = sessions(), .why_not = why_not_, .why_sessions = {}};
  for (const auto& [key, graph] : graphs_) {
    counts.bytes += graph->sessions * graph->bytes_of_each;
    counts.why_sessions = graph->worth.why().empty() ? counts.why_sessions : graph->worth.why();
  }
  return counts;
}

void ShapeGraphs::refuse(const std::string& key, const std::string& reason) {
  const bool last = demand_.refuse(key);
  why_not_ = reason;
  const MutexUnlock unlocked(mutex_);
  onnxruntime_log().push(
      {ORT_LOGGING_LEVEL_INFO, "ortmulti", "", "",
       ordinary_->model() + " on " + to_string(ordinary_->device()) +
           (last ? " gets no more CUDA graphs, since inputs of " + std::to_string(*numbers::graphs_max_refusals) +
                       " shapes in a row got none. The last reason: "
                 : " runs without a CUDA graph for inputs of one shape: ") +
           reason});
}

}  // namespace ortmulti
