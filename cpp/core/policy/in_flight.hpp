#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/policy/numbers.hpp"

namespace ortmulti {

/// How many requests a device has under way at most, chosen by measurement while further requests wait for it. It grows
/// step by step as long as more answers come in a second, and later looks at the numbers beside it again.
class InFlight {
 public:
  using Clock = std::chrono::steady_clock;

  /// The limit is `first` until something was measured, and never less. The first larger one is `second` or more, which
  /// takes a session more, and has to gain more for that. `min_gain`: that any larger number has to reach. `measured`:
  /// the time for which a number is, at least.
  explicit InFlight(std::size_t first, std::size_t second = 0, double min_gain = *numbers::in_flight_min_gain,
                    Clock::duration measured = *numbers::in_flight_measurement)
      : first_(first), second_(second), min_gain_(min_gain), measured_(measured), limit_(first) {}

  std::size_t limit() const noexcept { return limit_; }
  /// Whether numbers are being measured.
  bool choosing() const noexcept { return choosing_; }
  /// Whether try_more() is to come.
  bool asked() const noexcept { return asked_; }
  /// Whether a choice ended with the first limit since the last call.
  bool take_stayed() noexcept { return std::exchange(stayed_, false); }
  /// What try_more() raises it to.
  std::size_t next() const noexcept { return next(limit_); }

  /// Counts a run's answers; `elements`: of their inputs, which count instead where requests differ in length.
  /// `waiting`: how many wait now; times without any are not measured. Returns whether more than limit(), up to `most`,
  /// shall be tried: then call try_more().
  bool record(Clock::time_point now, std::size_t answers, std::size_t waiting, std::size_t most,
              std::optional<std::size_t> elements = std::nullopt);
  /// What is being counted says nothing of the limit, nor do the runs under way: something else keeps the device busy.
  void leave_out() noexcept {
    began_.reset();
    left_out_ = std::max(left_out_, limit_);
  }
  /// Raises the limit, or keeps it for the reason `why_not`.
  void try_more(Clock::time_point now, const std::string& why_not);

  /// Goes back to `first` for good, after a run that lacked memory. Returns whether the limit ever was higher.
  bool give_way();

  /// What was measured, as a text; empty where nothing was.
  const std::string& why() const noexcept { return why_; }

 private:
  /// Chooses at once again where twice as many requests are there as when it chose.
  void note_load(Clock::time_point now, std::size_t waiting);
  void settle(Clock::time_point now, const std::string& why_not_more);
  std::size_t next(std::size_t limit) const noexcept;
  /// The last ones.
  std::size_t steps_without_gain() const;

  std::size_t first_;
  std::size_t second_;
  double min_gain_;
  Clock::duration measured_;
  std::size_t limit_;
  std::size_t most_ = 0;
  bool choosing_ = false;
  bool grew_ = false;
  bool fixed_ = false;
  bool asked_ = false;
  bool stayed_ = false;
  std::vector<std::pair<std::size_t, double>> tried_;  // limits and the answers a second with them, ascending
  std::optional<Clock::time_point> began_;             // to measure
  std::size_t answers_ = 0;                            // since then
  std::size_t elements_ = 0;                           // of these
  bool waited_ = false;                                // requests did, at some time since then
  std::size_t left_out_ = 0;                           // runs before that, which say nothing of the limit
  Clock::duration pause_{};                            // from one choice to the next
  Clock::time_point next_choice_;
  std::optional<Clock::time_point> load_since_;  // of the mean
  std::size_t load_ = 0;                         // sum of the requests that were there
  std::size_t loads_ = 0;
  double chosen_load_ = 0;  // the largest mean during the last choice
  bool larger_ = false;     // the last mean was twice that
  std::string unit_;        // of the rates
  std::string why_;
};

}  // namespace ortmulti
