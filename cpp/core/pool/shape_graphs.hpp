#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/base/mutex.hpp"
#include "core/base/non_copyable.hpp"
#include "core/base/scope_exit.hpp"
#include "core/ort/session.hpp"
#include "core/ort/value.hpp"
#include "core/policy/graph_demand.hpp"
#include "core/policy/in_flight.hpp"
#include "core/policy/numbers.hpp"
#include "core/pool/runner.hpp"

namespace ortmulti {

/// CUDA graphs for input shapes that come again, beside a session's ordinary runs. Each graph has sessions of its own,
/// which `Wanted` has made. Any thread may use it.
class ShapeGraphs : public std::enable_shared_from_this<ShapeGraphs>, NonCopyable {
 public:
  /// A shape gets a graph after so many ordinary runs, since making sessions takes as long as loading them. With 1,
  /// requests of the shape wait for the graph: an ordinary run may take longer after a run of another shape, as
  /// convolutions do.
  struct Rule {
    std::uint64_t runs_before_capture = *numbers::graphs_runs_before_capture;
    std::size_t max_shapes = *numbers::graphs_max_shapes;
  };

  using Tensors = std::vector<std::pair<std::string, Ort::Value>>;
  /// One ordinary run, in the host's memory.
  struct Sample {
    Tensors inputs;
    Tensors outputs;
  };
  /// Sessions that have a graph, each with runners of it.
  struct GraphSessions {
    std::vector<std::vector<std::shared_ptr<Runner>>> runners;  ///< `graphs.runners` of each session.
    std::uint64_t bytes_of_each = 0;                            ///< Of the device's memory.
  };
  /// Called by the thread that ran the shape, when so many sessions are wanted for its graph. Has another thread call
  /// add(), not_made() or not_now() later. It must not throw.
  using Wanted =
      std::function<void(const std::shared_ptr<ShapeGraphs>& graphs, const std::string& key, std::size_t sessions)>;

  using Clock = InFlight::Clock;
  ShapeGraphs(std::shared_ptr<Session> ordinary, Rule rule, Wanted wanted,
              std::function<Clock::time_point()> now = Clock::now)
      : ordinary_(std::move(ordinary)),
        rule_(rule),
        wanted_(std::move(wanted)),
        now_(std::move(now)),
        demand_(rule.runs_before_capture) {}

  /// Takes a runner that has the graph of these shapes; nobody else uses it until it is released. Waits if all are
  /// taken, or if a graph is awaited. Null: there is no graph.
  std::shared_ptr<Runner> take(const std::string& key);

  /// Counts an ordinary run as under way as long as the result lives.
  auto ordinary_run() {
    ++under_way_;
    return ScopeExit([this] { --under_way_; });
  }
  /// Counts an ordinary run of these shapes. True if they shall get a graph now: then call want() or not_now().
  bool count_ordinary_run(const std::string& key);
  /// Counts an answer by a graph. True if another session shall be tried since requests wait: then call want() or
  /// not_now().
  bool count_graph_run(const std::string& key);
  void want(const std::string& key, Sample sample);
  /// Whether a graph, or another session of one, is being made.
  bool making() const noexcept { return is_making_; }
  /// Whether drop_all() cancelled the graph that is being made.
  bool cancelled() const;
  /// Postpones the graph until its shapes have come twice as often.
  void not_now(const std::string& key, const std::string& reason);
  /// The input shapes of the wanted graph.
  std::vector<std::pair<std::string, std::vector<std::int64_t>>> wanted_shapes() const;
  /// What is wanted, until add(), not_made() or not_now().
  const Sample& wanted_sample() const;
  /// Adds what was made, one session at least.
  void add(const std::string& key, GraphSessions made);
  /// Says that wanted sessions cannot be made. If the shapes have no graph, they run ordinarily from now on, and the
  /// log says so.
  void not_made(const std::string& key, const std::string& reason);
  /// Frees a graph that failed. Its shapes run ordinarily from now on.
  void drop(const std::string& key, const std::string& reason);
  /// Frees all graphs for their memory. Returns whether there were any. Their shapes may get graphs again.
  bool drop_all();

  GraphCounts counts() const;

 private:
  struct NumberedRunner {
    std::shared_ptr<Runner> runner;
    std::size_t session;  // its number
  };
  struct Graph {
    explicit Graph(std::size_t first) : worth(first, 0, *numbers::in_flight_min_gain_of_session) {}

    std::deque<NumberedRunner> idle;  // the last used first
    std::size_t sessions = 0;
    std::uint64_t bytes_of_each = 0;
    std::size_t under_way = 0;     // runs
    std::size_t recent_waits = 0;  // above 0 while more than half of the last runs had the last runner, or waited
    InFlight worth;                // chooses the number of sessions
    std::uint64_t used = 0;        // the number of the run that used it last
  };
  struct Making {
    std::string key;
    std::size_t sessions = 0;
    Sample sample;           // once it is wanted
    bool cancelled = false;  // drop_all() was called meanwhile
  };

  using Graphs = std::map<std::string, std::shared_ptr<Graph>>;

  Graphs::iterator least_recently_used() ORTMULTI_REQUIRES(mutex_);
  /// Whether requests of the shape wait for the graph that is being made.
  bool awaited(const std::string& key) const ORTMULTI_REQUIRES(mutex_) {
    return making_ && making_->key == key && !making_->cancelled && rule_.runs_before_capture == 1;
  }
  /// The number of sessions of all graphs.
  std::size_t sessions() const ORTMULTI_REQUIRES(mutex_);
  /// The number of sessions that may still be made.
  std::size_t more_sessions() const ORTMULTI_REQUIRES(mutex_);
  void begin_making(const std::string& key, std::size_t sessions) ORTMULTI_REQUIRES(mutex_);
  /// Ends the making. Returns the graph that the shapes have already; null: none.
  std::shared_ptr<Graph> end_making(const std::string& key) ORTMULTI_REQUIRES(mutex_);
  /// Ends a making that brought no sessions. True if the shapes keep the graph that they have, or if drop_all()
  /// cancelled the making.
  bool ended_without_sessions(const std::string& key, const std::string& reason) ORTMULTI_REQUIRES(mutex_);
  void refuse(const std::string& key, const std::string& reason) ORTMULTI_REQUIRES(mutex_);
  /// Prefers a runner of a session that nobody uses; of these the last used one, whose time is known best.
  static std::deque<NumberedRunner>::iterator best_of(std::deque<NumberedRunner>& idle);
  /// Takes the idle runners of sessions that gain nothing, to be freed without the lock.
  static std::deque<NumberedRunner> take_surplus(Graph& graph);

  const std::shared_ptr<Session> ordinary_;
  const Rule rule_;
  const Wanted wanted_;
  const std::function<Clock::time_point()> now_;
  mutable Mutex mutex_;
  Condition given_back_;
  GraphDemand demand_ ORTMULTI_GUARDED_BY(mutex_);
  Graphs graphs_ ORTMULTI_GUARDED_BY(mutex_);
  std::atomic<std::size_t> under_way_ = 0;                      // ordinary runs
  std::atomic<std::size_t> by_graphs_ = 0;                      // runs by graphs
  std::unique_ptr<Making> making_ ORTMULTI_GUARDED_BY(mutex_);  // one at a time; null: none
  std::atomic<bool> is_making_ = false;
  std::string why_not_ ORTMULTI_GUARDED_BY(mutex_);  // why a shape got none, since the last graph that was made
};

}  // namespace ortmulti
