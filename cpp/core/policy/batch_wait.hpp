#pragma once

#include <chrono>
#include <cstddef>

#include "core/policy/recent_average.hpp"

namespace ortmulti {

/// How long a free session waits for the next requests of the clients that it has just answered. Clients that wait for
/// each answer send their next requests at once. Without the wait these would miss the run and form another half batch.
/// After a wait that brought too few, waits become rarer, down to one in 64 runs.
class BatchWait {
 public:
  /// Notes a run: the size of its batch, and how long it took.
  void record_run(std::size_t size, std::chrono::nanoseconds time) noexcept;

  /// How long to wait at most after a run, where `workers` take requests from one queue: a tenth of the average time
  /// between their runs.
  std::chrono::nanoseconds longest_wait(std::size_t workers) const noexcept;

  /// Whether to wait this time.
  bool tries() noexcept;

  /// Notes a wait: `came` of `most` requests that could come.
  void record_wait(std::size_t came, std::size_t most) noexcept;

  /// The size of the last run's batch.
  std::size_t answered() const noexcept { return answered_; }

 private:
  std::size_t answered_ = 0;
  RecentAverage run_time_;
  std::size_t pause_ = 0;  // runs between two waits
  std::size_t left_ = 0;
};

}  // namespace ortmulti
