#pragma once

#include <array>
#include <chrono>
#include <cstddef>

#include "core/policy/recent_average.hpp"

namespace ortmulti {

/// For whom a free session waits: the clients that it has just answered. Clients that wait for each answer send their
/// next requests at once. Without the wait these would miss the run and form another half batch. Once they are there,
/// nobody else is expected; a delay that was asked for ends then, after eight whole ones in a row brought nobody else.
/// After a wait that brought too few, waits become rarer, down to one in 64 runs.
class BatchWait {
 public:
  /// Notes a run: its rows, how many more waited at its end, and how long it took.
  void record_run(std::size_t rows, std::size_t left, std::chrono::nanoseconds time) noexcept;

  /// The number of rows, of `most`, with which a run begins at once. `waited`: rows that came before the session became
  /// free; if none did, the number is that of the rows which were there at once in the last few runs.
  std::size_t enough(std::size_t waited, std::size_t most) const noexcept;

  /// Notes a whole delay, or one that more than those expected ended: `rows` were there. `others`: runs that were under
  /// way beside it.
  void record_delay(std::size_t rows, std::size_t expected, std::size_t others) noexcept;
  /// Whether a delay ends once those are there who are expected. Not beside more runs than it ever was in vain: their
  /// clients may come. Once in 256 runs it is whole in any case.
  bool ends_delays(std::size_t others) const noexcept;

  /// How long to wait at most after a run, where `workers` take requests from one queue: a tenth of the average time
  /// between their runs.
  std::chrono::nanoseconds longest_wait(std::size_t workers) const noexcept;

  /// Whether to wait this time.
  bool tries() noexcept;

  /// Notes a wait: `came` of `most` requests that could come.
  void record_wait(std::size_t came, std::size_t most) noexcept;

 private:
  static constexpr std::size_t remembered = 4;  // runs

  std::size_t answered_ = 0;                     // rows of the last run
  std::array<std::size_t, remembered> there_{};  // rows of the last runs, with those that waited at their ends
  std::size_t runs_ = 0;
  std::size_t in_vain_ = 0;  // whole delays in a row
  std::size_t others_ = 0;   // the most beside them
  RecentAverage run_time_;
  std::size_t pause_ = 0;  // runs between two waits
  std::size_t left_ = 0;
};

}  // namespace ortmulti
