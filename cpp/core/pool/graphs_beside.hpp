#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "core/base/non_copyable.hpp"
#include "core/base/recently_used.hpp"
#include "core/base/scope_exit.hpp"
#include "core/ort/session.hpp"
#include "core/ort/value.hpp"
#include "core/pool/in_flight.hpp"
#include "core/pool/runner.hpp"

namespace ortmulti {

class GpuRunner;

/// CUDA graphs beside a session's ordinary runs: of input shapes that come again, in sessions of their own, which
/// somebody makes when they are wanted. For several threads.
class GraphsBeside : public std::enable_shared_from_this<GraphsBeside>, NonCopyable {
 public:
  /// When a shape gets a graph: with so many ordinary runs, since sessions are made for it, which takes as long as to
  /// load them; and how many shapes have one. With one run, requests of the shape wait until it is made: an ordinary
  /// run of another shape than the one before may take longer, as those of convolutions do.
  struct Rule {
    std::uint64_t come_again = 20;
    std::size_t most_shapes = 8;
  };
  static constexpr std::size_t most_seen = 1024;  ///< Shapes without a graph that are counted, those used last.
  /// Runs of the session without one of a graph's shapes, after which another graph may take its place. Where more
  /// shapes than have graphs come all the time, those that are there stay.
  static constexpr std::uint64_t unused = 1000;
  /// Sessions of one shape. A graph has its session's memory to itself, so only those of different sessions run side by
  /// side: with four, ResNet-50 answered 12% more than with three, and BERT-base with three as many as ordinary runs of
  /// 16 threads (H100).
  static constexpr std::size_t most_sessions = 4;
  /// While one of a session's runners has its graph run, the other copies.
  static constexpr std::size_t runners_of_each = 2;
  /// Of each session's handles of cuBLAS and cuDNN (onnxruntime-gpu 1.31.1 on an H100).
  static constexpr std::uint64_t bytes_of_handles = std::uint64_t{72} << 20U;
  static constexpr int most_refusals = 8;  ///< In a row; then no more are wanted.

  /// Asked before each capture, without a lock: why it must not be now; empty where it may.
  using WhyNot = std::function<std::string()>;
  using Tensors = std::vector<std::pair<std::string, Ort::Value>>;
  /// One ordinary run, in the host's memory.
  struct Sample {
    Tensors inputs;
    Tensors outputs;
  };
  /// Called when so many sessions for a graph are wanted, by the thread that ran the shape: has add(), not_made() or
  /// not_now() be called, later and from another thread. It must not throw.
  using Wanted =
      std::function<void(const std::shared_ptr<GraphsBeside>& graphs, const std::string& key, std::size_t sessions)>;

  GraphsBeside(std::shared_ptr<Session> ordinary, Rule rule, Wanted wanted)
      : ordinary_(std::move(ordinary)), rule_(rule), wanted_(std::move(wanted)) {}

  /// A runner that has the graph of these shapes, and that nobody else uses as long as it is held. Waits for one, and
  /// for a graph that was asked for. Null where there is no graph.
  std::shared_ptr<GpuRunner> take(const std::string& key);

  /// While the result lives, an ordinary run is under way.
  auto ordinary_run() {
    ++under_way_;
    return ScopeExit([this] { --under_way_; });
  }
  /// Counts an ordinary run that is under way. True where the shapes are to get a graph now, with as many sessions as
  /// runs were under way at once: then want() is to be called, or not_now().
  bool came_again(const std::string& key);
  /// Counts an answer by a graph. True where another session is to be tried, since requests wait: as above.
  bool answered(const std::string& key);
  void want(const std::string& key, Sample sample);
  /// Whether what is being made is not wanted any more, since drop_all() was called.
  bool in_vain() const;
  /// They may be wanted again when they have come twice as often.
  void not_now(const std::string& key, const std::string& reason);
  /// The shapes of the sample, while a graph is wanted.
  std::vector<std::pair<std::string, std::vector<std::int64_t>>> wanted_shapes() const;
  /// Captures the wanted graph in these sessions, which were created to capture, and proves each: see GpuRunner::prove.
  /// Their answers are also compared with the ordinary one, which another optimization may differ from by rounding.
  /// Throws Error, with nothing added.
  void add(const std::string& key, const std::vector<std::shared_ptr<Session>>& made, const WhyNot& why_not);
  /// Sessions that were wanted cannot be had. Without any, these shapes are run ordinarily from now on; the log says
  /// so.
  void not_made(const std::string& key, const std::string& reason);
  /// A graph failed: it goes, and its shapes are run ordinarily from now on.
  void drop(const std::string& key, const std::string& reason);
  /// Frees all graphs, for the sake of their memory. Returns whether there were any. Their shapes may come again.
  bool drop_all();

  GraphCounts counts() const;

 private:
  struct Place {
    std::shared_ptr<GpuRunner> runner;
    std::size_t session;  // its number
  };
  struct Graph {
    explicit Graph(std::size_t first) : worth(first) {}

    std::deque<Place> idle;  // the last used first
    std::size_t sessions = 0;
    std::uint64_t bytes_of_each = 0;
    std::size_t crowd = 0;   // above 0 while more than half of the requests had to wait lately
    InFlight worth;          // as many sessions as gain something
    std::uint64_t used = 0;  // by which run, counted
  };
  struct Seen {
    std::uint64_t runs = 0;
    std::size_t at_once = 0;  // the most of them
    bool refused = false;
    unsigned put_off = 0;  // how often; each time for twice as many runs
  };

  struct Making {
    std::string key;
    std::size_t sessions = 0;
    Sample sample;         // once it is wanted
    bool in_vain = false;  // all graphs were dropped meanwhile
  };

  using Graphs = std::map<std::string, std::shared_ptr<Graph>>;

  Graphs::iterator least_recently_used();
  /// Whether requests of the shape wait for the graph that is being made.
  bool awaited(const std::string& key) const {
    return making_ && making_->key == key && !making_->in_vain && rule_.come_again == 1;
  }
  /// Ends the making. Returns the graph that there was already; null for none.
  std::shared_ptr<Graph> made_or_not(const std::string& key);
  /// Ends a making without sessions. Returns whether its shapes are done with: they had a graph already, which stays as
  /// it is, or all were dropped meanwhile.
  bool ended_otherwise(const std::string& key, const std::string& reason);
  void refuse(const std::string& key, const std::string& reason, std::unique_lock<std::mutex> lock);
  /// One of a session that nobody uses, if there is one; and of these the last used, whose time is known best.
  static std::deque<Place>::iterator best_of(std::deque<Place>& idle);
  /// Takes what is not worth its memory out of the idle ones, to be freed without the lock.
  static std::deque<Place> take_surplus(Graph& graph);

  const std::shared_ptr<Session> ordinary_;
  const Rule rule_;
  const Wanted wanted_;
  mutable std::mutex mutex_;
  std::condition_variable given_back_;
  RecentlyUsed<Seen> seen_{most_seen};
  Graphs graphs_;
  std::uint64_t runs_ = 0;  // by graphs and ordinary ones
  std::atomic<std::size_t> under_way_ = 0;
  std::unique_ptr<Making> making_;  // one at a time; null: none
  std::string why_not_;             // a shape got none, since the last graph that was made
  int refusals_ = 0;                // since the last graph that was made
};

}  // namespace ortmulti
