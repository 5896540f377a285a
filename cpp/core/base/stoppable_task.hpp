#pragma once

#include <chrono>
#include <functional>
#include <future>
#include <stop_token>
#include <utility>

#include "core/base/non_copyable.hpp"

namespace ortmulti {

/// Long work beside its caller, in a thread of its own. Where no thread can start, take() does the work.
template <typename Result>
class StoppableTask : NonCopyable {
 public:
  /// `work` should end soon after a request to stop, with an Error.
  explicit StoppableTask(std::function<Result(const std::stop_token& stop)> work)
      : work_(std::move(work)),
        // The function holds a pointer alone: where no thread can start, libstdc++ calls one that was moved from.
        result_(std::async(std::launch::async | std::launch::deferred, [this] { return work_(stop_.get_token()); })) {}
  /// Stops the work, and waits until its thread has ended.
  ~StoppableTask() { stop(); }

  /// Does not wait.
  void stop() { stop_.request_stop(); }

  /// Waits at most `timeout`; whether take() returns at once, or does the work.
  bool wait(std::chrono::milliseconds timeout) const {
    return result_.wait_for(timeout) != std::future_status::timeout;
  }
  Result take() { return result_.get(); }

 private:
  std::function<Result(const std::stop_token&)> work_;
  std::stop_source stop_;
  std::future<Result> result_;  // waits for its thread when it is freed
};

}  // namespace ortmulti
