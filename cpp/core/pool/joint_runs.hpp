#pragma once

#include <chrono>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "core/pool/dispatcher.hpp"

namespace ortmulti {

struct RunEnd;

/// The part of Pool that runs requests: one, or several together, of which some are run alone too and compared.
class JointRuns : public Dispatcher {
 protected:
  using Dispatcher::Dispatcher;

  RunEnd run_one(Worker& worker, Request& request) const ORTMULTI_REQUIRES(mutex_);
  RunEnd run_joint(Worker& worker, const Requests& batch) ORTMULTI_REQUIRES(mutex_);
  static bool nobody_waits(const Requests& batch);
  void end_early(Request& request) ORTMULTI_REQUIRES(mutex_);

  void gather(Worker& worker, bool at_once) ORTMULTI_REQUIRES(mutex_);
  /// Lets waiting requests join the forming batch.
  void take_waiting(Worker& worker) ORTMULTI_REQUIRES(mutex_);
  /// What asked so far were trials of the model.
  void forget_clients() ORTMULTI_REQUIRES(mutex_);

  /// Says in the log and the statistics that requests are joined no more; `joining_` knows which.
  void note_stop(const std::string& why, OrtLoggingLevel level) ORTMULTI_REQUIRES(mutex_);

 private:
  /// Whether requests wait that did not fit into the forming batch.
  bool holds_up_others(const Worker& worker) ORTMULTI_REQUIRES(mutex_);
  /// Runs that may be under way on all devices, which take requests from one queue.
  std::size_t at_once_anywhere() const ORTMULTI_REQUIRES(mutex_);
  struct Audit {
    std::string difference;  ///< From the request's answer alone; empty: none but rounding.
    bool by_size = false;    ///< It comes from the run's size, not from other requests.
    std::chrono::nanoseconds time{0};
  };
  /// Runs a request of a joint run alone, and compares. `in_size`: in a run of the same size, filled with copies of it.
  /// `random`: outputs that differ from run to run.
  Audit audit(Worker& worker, const std::shared_ptr<Request>& request, const JointSize& size,
              const std::vector<JointSize>& sizes, const Batching& batching, bool in_size,
              const std::set<std::string>& random) const ORTMULTI_EXCLUDES(mutex_);
  /// Applies the results of a joint run's audits to it and to later ones.
  void note_audits(const Joining::Audit& done, const std::vector<Audit>& found, RunEnd& end) ORTMULTI_REQUIRES(mutex_);
};

}  // namespace ortmulti
