#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <queue>
#include <string>
#include <utility>
#include <vector>

#include "core/policy/batch_wait.hpp"
#include "core/policy/in_flight.hpp"
#include "core/policy/rows_per_run.hpp"
#include "core/policy/run_cost.hpp"
#include "core/policy/side_by_side.hpp"

namespace ortmulti::tests {

/// What a device takes for a model, in seconds.
struct TrialModel {
  bool on_cpu = false;
  std::size_t cores = 16;      ///< Of the machine.
  std::size_t busy_cores = 0;  ///< That others use.
  double host = 0;             ///< A GPU's run in its own thread: launches, copies.
  double run = 0;              ///< On the device, where runs go one after the other; on a CPU with one thread.
  double row = 0;              ///< More for each row.
  double alone = 0;            ///< Share of a run on a CPU that all cores do no sooner than one.
  double slower = 0;           ///< Share of its time that a row takes longer for each further row.
};

/// Clients that each wait for their answers, and the settings of the pool.
struct TrialLoad {
  std::string name;
  TrialModel model;
  std::vector<std::pair<double, std::size_t>> clients;  ///< Since a time, so many.
  double think = 0;                                     ///< Of a client, before its next request.
  double spread = 0;                                    ///< Requests take up to this share more or less.
  std::size_t max_rows = 1;                             ///< 1: no batching.
  double max_delay = 0;
  double rate = 0;                         ///< Of requests that come by chance, whose clients wait for nothing.
  std::vector<std::size_t> at_once = {1};  ///< Requests of a client that it sends together, in turn.
};

/// What is fixed, as by hand. Nothing: the pool's rules choose.
struct TrialSettings {
  std::optional<std::size_t> in_flight;
  std::optional<std::size_t> rows;
  bool waits_for_clients = true;
  bool side_by_side = true;
};

struct TrialResult {
  double rate = 0;  ///< Answers a second.
  double p99 = 0;   ///< Seconds.
  std::string why;  ///< What the rules say.
};

/// A device of a pool by events on a virtual clock: clients, one queue, and the rules of `core/policy`, asked as Pool
/// asks them.
class Trial {
 public:
  Trial(const TrialLoad& load, const TrialSettings& settings);

  /// What was answered from `from` to `until`, seconds since the first request.
  TrialResult run(double from, double until);

 private:
  struct Request {
    std::size_t client = 0;
    double submitted = 0;
    double size = 1;
  };
  struct Worker {
    BatchWait batch_wait;
    double freed = 0;
    bool busy = false;
  };
  struct Run {
    Worker* worker = nullptr;
    std::vector<Request> batch;
    std::size_t most = 0;      // rows
    std::size_t enough = 0;    // of them
    std::size_t expected = 0;  // of them
    std::size_t others = 0;    // runs under way
    bool whole_delay = false;
    std::optional<std::size_t> there;  // when the delay was over
    bool side_by_side = false;
    double left = 0;  // of its work on a CPU
    double threads = 0;
    SharedTime::Part begun{};
    double began = 0;
  };
  using RunPointer = std::shared_ptr<Run>;

  void at(double time, std::function<void()> call);
  InFlight::Clock::time_point clock() const;
  std::size_t clients_now() const;
  std::size_t limit() const;
  double cost(const Run& run) const;

  double chance();
  void begin_client(std::size_t client);
  void come_by_chance();
  void send(std::size_t client);
  void submit(std::size_t client);
  void dispatch();
  void give(Worker& worker);
  void delayed(const RunPointer& run, std::size_t rows_before);
  void start(const RunPointer& run);
  void share_cpu();
  void advance_cpu();
  void end(const RunPointer& run);

  const TrialLoad& load_;
  const TrialSettings settings_;
  InFlight in_flight_;
  RowsPerRun rows_per_run_;
  SideBySide side_by_side_;
  SharedTime time_;

  struct Event {
    double time;
    std::uint64_t number;
    std::function<void()> call;
    bool operator<(const Event& other) const {
      return std::pair(time, number) > std::pair(other.time, other.number);  // the earliest comes first
    }
  };
  std::priority_queue<Event> events_;
  std::uint64_t number_ = 0;
  double now_ = 0;
  std::vector<Request> waiting_;
  RunPointer forming_;
  std::vector<Worker> workers_;
  std::size_t under_way_ = 0;
  double device_free_ = 0;
  std::vector<RunPointer> on_cpu_;
  double cpu_since_ = 0;
  std::uint64_t cpu_number_ = 0;
  struct Client {
    std::size_t sent = 0;  // groups of requests
    std::size_t open = 0;  // requests
  };
  std::vector<Client> clients_;
  std::uint64_t random_ = 1;
  double from_ = 0;
  std::vector<double> latencies_;
};

}  // namespace ortmulti::tests
