#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "core/pool/joint_runs.hpp"

namespace ortmulti {

/// The part of Pool that its threads are in: each has a runner, and takes requests until the pool closes.
class Workers : public JointRuns {
 public:
  /// Why a device must not have more runs under way; empty: it may.
  using WhyNot = std::function<std::string(const Device&)>;
  /// Has each GPU begin with one run under way, which takes the least memory, unless a number was given. `why_not` is
  /// asked before it gets more.
  void grow_from_one(WhyNot why_not);

 protected:
  using JointRuns::JointRuns;

  /// Throws std::system_error if the system has no thread.
  void start(Worker& worker) ORTMULTI_REQUIRES(mutex_);
  /// Starts threads for so many runs at the same time. Returns why not; empty: there are as many.
  std::string start_more(DeviceGroup& group, std::size_t at_once) ORTMULTI_REQUIRES(mutex_);
  /// Lets InFlight choose the number of requests under way, after answers. Gives the mutex to others meanwhile.
  void adapt(Worker& worker, std::size_t answers, std::optional<std::size_t> elements = std::nullopt)
      ORTMULTI_REQUIRES(mutex_);
  void conclude(Worker& worker, const std::shared_ptr<Request>& request, const RunEnd& end, Requests& finished)
      ORTMULTI_REQUIRES(mutex_);
  /// Concludes a run; false if the request shall be tried elsewhere.
  bool end_run(Worker& worker, Request& request, const RunEnd& end, Requests& finished) ORTMULTI_REQUIRES(mutex_);

 private:
  void work(Worker& worker) ORTMULTI_EXCLUDES(mutex_);
  /// Has another thread take the place of the calling one, which then ends. False if the system has no thread.
  bool renew(Worker& worker) ORTMULTI_REQUIRES(mutex_);
  /// `at_once`: it got its requests as its last run ended.
  void run_batch(Worker& worker, bool at_once) ORTMULTI_REQUIRES(mutex_);
  /// Runs requests of a failed joint run again: in halves, down to single ones.
  void run_again(Worker& worker, Requests batch, const RunEnd& joint, Requests& finished) ORTMULTI_REQUIRES(mutex_);
  void wake_up(Worker& worker) ORTMULTI_REQUIRES(mutex_);

  WhyNot why_not_ ORTMULTI_GUARDED_BY(mutex_);  // null: nobody is asked
};

}  // namespace ortmulti
