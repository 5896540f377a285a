#include "core/policy/batch_wait.hpp"

#include <algorithm>

#include "core/policy/numbers.hpp"

namespace ortmulti {

void BatchWait::record_run(std::size_t rows, std::size_t left, std::chrono::nanoseconds time) noexcept {
  answered_ = rows;
  there_.at(runs_++ % remembered) = rows + left;
  run_time_.record(time);
}

std::size_t BatchWait::enough(std::size_t waited, std::size_t most) const noexcept {
  if (runs_ == 0) {
    return most;
  }
  return std::min(most, waited > 0 ? waited + answered_ : *std::ranges::max_element(there_));
}

void BatchWait::record_delay(std::size_t rows, std::size_t expected, std::size_t others) noexcept {
  const bool in_vain = rows <= expected;
  in_vain_ = in_vain ? (others > others_ ? 0 : in_vain_) + 1 : 0;
  others_ = in_vain ? std::max(others_, others) : 0;
}

bool BatchWait::ends_delays(std::size_t others) const noexcept {
  return in_vain_ >= *numbers::batch_wait_whole_delays && others <= others_ &&
         runs_ % *numbers::batch_wait_runs_between_delays != 0;
}

std::chrono::nanoseconds BatchWait::longest_wait(std::size_t workers) const noexcept {
  const auto time = std::chrono::duration_cast<std::chrono::nanoseconds>(
      run_time_.value() * *numbers::batch_wait_share / static_cast<double>(workers));
  return time < *numbers::batch_wait_shortest ? std::chrono::nanoseconds(0) : time;
}

bool BatchWait::tries() noexcept {
  const bool now = left_ == 0;
  left_ -= now ? 0 : 1;
  return now;
}

void BatchWait::record_wait(std::size_t came, std::size_t most) noexcept {
  pause_ = 2 * came >= most ? 0 : std::min(2 * pause_ + 1, *numbers::batch_wait_longest_pause);
  left_ = pause_;
}

}  // namespace ortmulti
