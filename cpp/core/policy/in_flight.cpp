#include "core/policy/in_flight.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/policy/numbers.hpp"

namespace ortmulti {

std::size_t InFlight::next(std::size_t limit) const noexcept {
  return std::min(most_, std::max(second_, limit + std::max<std::size_t>(1, limit / 2)));
}

void InFlight::note_load(Clock::time_point now, std::size_t waiting) {
  load_since_ = load_since_.value_or(now);
  load_ += waiting == 0 ? 0 : waiting + limit_;  // else fewer than the limit may be under way
  ++loads_;
  if (now - *load_since_ < *numbers::in_flight_measurement) {
    return;
  }
  const double mean = static_cast<double>(load_) / static_cast<double>(loads_);
  load_since_.reset();
  load_ = 0;
  loads_ = 0;
  if (choosing_) {
    chosen_load_ = std::max(chosen_load_, mean);
    return;
  }
  const bool larger = mean > 2 * chosen_load_ && mean > chosen_load_ + *numbers::in_flight_other_load;
  if (larger && std::exchange(larger_, larger)) {
    next_choice_ = now;
    pause_ = {};
  }
  larger_ = larger;
}

bool InFlight::record(Clock::time_point now, std::size_t answers, std::size_t waiting, std::size_t most,
                      std::optional<std::size_t> elements) {
  most_ = std::max(most, first_);
  if (fixed_ || asked_ || most_ == first_) {
    return false;
  }
  note_load(now, waiting);
  if (now < next_choice_) {
    return false;
  }
  // What is tried may leave nobody waiting.
  if (waiting == 0 && tried_.empty()) {
    began_.reset();
    return false;
  }
  if (!choosing_) {  // again, if it is not the first time: beginning with the step before
    choosing_ = true;
    chosen_load_ = 0;
    std::size_t before = first_;
    while (next(before) < limit_) {
      before = next(before);
    }
    limit_ = before;
    left_out_ = std::max(left_out_, grew_ ? limit_ : 0);
  }
  if (!began_) {
    left_out_ -= std::min<std::size_t>(left_out_, 1);
    if (left_out_ == 0) {
      began_ = now;
      answers_ = 0;
      elements_ = 0;
      waited_ = false;
    }
    return false;
  }
  answers_ += answers;
  waited_ = waited_ || waiting > 0;
  elements_ += elements.value_or(answers);
  const Clock::duration taken = now - *began_;
  if (taken < measured_ || answers_ < *numbers::in_flight_min_answers * limit_) {
    return false;
  }
  const double rate = static_cast<double>(elements_) / std::chrono::duration<double>(taken).count();
  unit_ = elements ? "elements" : "answers";
  began_.reset();
  tried_.emplace_back(limit_, rate);
  if (limit_ >= most_ || !waited_ || steps_without_gain() == *numbers::in_flight_steps_without_gain) {
    settle(now, "");
    return false;
  }
  asked_ = true;
  return true;
}

// Small gains of several steps add up.
std::size_t InFlight::steps_without_gain() const {
  double gained = 0;
  std::size_t steps = 0;
  for (const auto& [limit, rate] : tried_) {
    const bool gain = rate >= *numbers::in_flight_min_gain * gained;
    gained = gain ? rate : gained;
    steps = gain ? 0 : steps + 1;
  }
  return steps;
}

void InFlight::try_more(Clock::time_point now, const std::string& why_not) {
  asked_ = false;
  if (fixed_) {
    return;
  }
  if (!why_not.empty()) {
    settle(now, why_not);
    return;
  }
  limit_ = next(limit_);
  left_out_ = limit_;  // those under way, and the first one of each further thread, for which memory is taken
  grew_ = true;
}

void InFlight::settle(Clock::time_point now, const std::string& why_not_more) {
  double best = 0;
  why_ = unit_ + " a second: ";
  for (const auto& [limit, rate] : tried_) {
    best = std::max(best, rate);
    why_ += (limit == tried_.front().first ? "" : ", ") + std::to_string(std::lround(rate)) + " with " +
            std::to_string(limit);
  }
  why_ += why_not_more.empty() ? "" : "; no more were tried: " + why_not_more;
  for (const auto& [limit, rate] : tried_) {
    if (rate * (limit == first_ && second_ > 0 ? *numbers::in_flight_min_gain_of_session : min_gain_) >= best) {
      limit_ = limit;
      break;
    }
  }
  stayed_ = limit_ == first_;
  tried_.clear();
  choosing_ = false;
  pause_ = pause_ == Clock::duration()
               ? *numbers::in_flight_first_choice_lasts
               : std::min<Clock::duration>(2 * pause_, *numbers::in_flight_longest_choice_lasts);
  if (stayed_ && second_ > 0) {
    pause_ = std::max<Clock::duration>(pause_, *numbers::in_flight_session_for_nothing_lasts);
  }
  next_choice_ = now + pause_;
}

bool InFlight::give_way() {
  if (grew_ && !fixed_) {
    fixed_ = true;
    why_ = "memory was short with " + std::to_string(limit_);
    limit_ = first_;
  }
  return grew_;
}

}  // namespace ortmulti
