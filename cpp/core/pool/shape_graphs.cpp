#include "core/pool/shape_graphs.hpp"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <optional>

#include "core/base/error.hpp"
#include "core/ort/library.hpp"
#include "core/policy/numbers.hpp"
#include "core/pool/captured_runner.hpp"

namespace ortmulti {
namespace {

/// Makes a request of copies, and of the session's outputs.
class SampleRequest : public Request {
 public:
  SampleRequest(const ShapeGraphs::Tensors& sample, const Session& session, bool reversed) {
    inputs.reserve(sample.size());
    for (const auto& [name, value] : sample) {
      inputs.add(name.c_str(), copy(value, reversed));
    }
    for (const ValueInfo& output : session.outputs()) {
      output_names.push_back(output.name.c_str());
    }
  }

 private:
  // In the reverse order the elements are others, and still what the model takes: indices, masks.
  static Ort::Value copy(const Ort::Value& value, bool reversed) {
    const auto info = value.GetTensorTypeAndShapeInfo();
    Ort::Value made = new_tensor(info.GetElementType(), info.GetShape());
    const std::size_t count = info.GetElementCount();
    const std::size_t bytes = tensor_bytes(value);
    const std::size_t each = count == 0 ? 0 : bytes / count;
    const auto* const from = static_cast<const std::byte*>(value.GetTensorRawData());
    auto* const to = static_cast<std::byte*>(made.GetTensorMutableRawData());
    for (std::size_t i = 0; i < count; ++i) {
      std::copy_n(from + (reversed ? count - 1 - i : i) * each, each, to + i * each);
    }
    return made;
  }
};

// Numbers of a floating-point type; nothing for others.
std::optional<std::vector<double>> to_numbers(const Ort::Value& value) {
  const std::size_t count = value.GetTensorTypeAndShapeInfo().GetElementCount();
  std::vector<double> numbers(count);
  const auto fill = [&](const auto* from, const auto& convert) {
    std::transform(from, from + count, numbers.begin(), convert);
  };
  const auto as_float = [](const auto& number) { return number.ToFloat(); };
  const auto as_it_is = [](const auto& number) { return number; };
  switch (value.GetTensorTypeAndShapeInfo().GetElementType()) {
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT:
      fill(value.GetTensorData<float>(), as_it_is);
      return numbers;
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_DOUBLE:
      fill(value.GetTensorData<double>(), as_it_is);
      return numbers;
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16:
      fill(value.GetTensorData<Ort::Float16_t>(), as_float);
      return numbers;
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_BFLOAT16:
      fill(value.GetTensorData<Ort::BFloat16_t>(), as_float);
      return numbers;
    default:
      return std::nullopt;
  }
}

bool is_close(const Ort::Value& value, const Ort::Value& expected) {
  const std::optional<std::vector<double>> wanted = to_numbers(expected);
  const std::optional<std::vector<double>> numbers = to_numbers(value);
  if (!wanted || !numbers || wanted->size() != numbers->size()) {
    return same_bits(value, expected);
  }
  double largest = 0;
  double difference = 0;
  for (std::size_t i = 0; i < wanted->size(); ++i) {
    const double one = (*wanted)[i];
    const double other = (*numbers)[i];
    if (std::isfinite(one) && std::isfinite(other)) {
      largest = std::max(largest, std::abs(one));
      difference = std::max(difference, std::abs(one - other));
    } else if (one != other && !(std::isnan(one) && std::isnan(other))) {
      return false;
    }
  }
  return difference <= *numbers::graphs_tolerance * largest;
}

void check_close(const ShapeGraphs::Tensors& expected, const std::vector<const char*>& names,
                 const std::vector<Ort::Value>& outputs) {
  for (const auto& [name, value] : expected) {
    const auto found = std::ranges::find(names, name);
    if (found == names.end() || !is_close(outputs[static_cast<std::size_t>(found - names.begin())], value)) {
      throw Error(ErrorKind::not_implemented, "the output '" + name + "' is another one with fixed shapes");
    }
  }
}

}  // namespace

std::shared_ptr<CapturedRunner> ShapeGraphs::take(const std::string& key) {
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
      CapturedRunner* const taken = numbered.runner.get();
      ++by_graphs_;
      return {taken, [self = shared_from_this(), graph, numbered = std::move(numbered)](CapturedRunner*) mutable {
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
  const InFlight::Clock::time_point now = InFlight::Clock::now();
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
    graph->worth.try_more(InFlight::Clock::now(), reason);
    why_not_ = "a further session of a graph: " + reason;
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

std::vector<std::pair<std::string, std::vector<std::int64_t>>> ShapeGraphs::wanted_shapes() const {
  const MutexLock lock(mutex_);
  std::vector<std::pair<std::string, std::vector<std::int64_t>>> shapes;
  for (const auto& [name, value] : making_->sample.inputs) {
    shapes.emplace_back(name, value.GetTensorTypeAndShapeInfo().GetShape());
  }
  return shapes;
}

void ShapeGraphs::add(const std::string& key, const std::vector<std::shared_ptr<Session>>& made,
                      const WhyNot& why_not) {
  const Sample& sample = [&]() -> const Sample& {
    const MutexLock lock(mutex_);
    return making_->sample;  // which stays until the end
  }();
  std::deque<NumberedRunner> runners;
  std::uint64_t bytes = made.size() * *numbers::graphs_handle_bytes;
  std::vector<std::shared_ptr<CapturedSession>> shared;
  shared.reserve(made.size());
  for (const auto& session : made) {
    shared.push_back(std::make_shared<CapturedSession>(session));
  }
  for (std::size_t i = 0; i < *numbers::graphs_runners; ++i) {
    for (std::size_t number = 0; number < shared.size(); ++number) {
      SampleRequest one(sample.inputs, *made[number], false);
      SampleRequest other(sample.inputs, *made[number], true);
      const auto runner = std::make_shared<CapturedRunner>(shared[number]);
      if (const std::string reason = why_not(); !reason.empty()) {
        throw Error(ErrorKind::fail, reason);
      }
      check_close(sample.outputs, one.output_names, runner->prove(one, other));
      bytes += runner->graph_bytes();
      runners.push_back({runner, number});
    }
  }
  for (const auto& session : made) {
    const auto arena = session->arena();
    bytes += arena ? arena->held : 0;
  }
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
    graph->worth.try_more(InFlight::Clock::now(), "");
  } else {
    if (graphs_.size() >= rule_.max_shapes) {
      const auto found = least_recently_used();
      oldest = found->second;
      demand_.forget(found->first);
      graphs_.erase(found);
    }
    graph = graphs_.emplace(key, std::make_shared<Graph>(made.size())).first->second;
  }
  for (NumberedRunner& numbered : runners) {
    numbered.session += graph->sessions;
    graph->idle.push_back(std::move(numbered));
  }
  graph->sessions += made.size();
  graph->bytes_of_each = bytes / made.size();
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
