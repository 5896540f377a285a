#include "core/policy/graph_gain.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/policy/numbers.hpp"

namespace ortmulti {

std::optional<double> GraphGain::rate(Clock::duration taken) const {
  if (taken < *numbers::graphs_gain_measurement || answers_ < *numbers::graphs_gain_min_answers) {
    return std::nullopt;
  }
  return static_cast<double>(answers_) / std::chrono::duration<double>(taken).count();
}

bool GraphGain::record(Clock::time_point now, bool by_graph, bool measurable) {
  if (now < next_ || (off() ? by_graph : !measurable)) {  // of those before, some end later
    began_ = off() ? began_ : std::nullopt;
    return false;
  }
  if (!began_) {
    began_ = now;
    answers_ = 0;
    return false;
  }
  ++answers_;
  const std::optional<double> found = rate(now - *began_);
  if (!found) {
    return false;
  }
  began_.reset();
  if (!off()) {
    with_ = found;
    return false;
  }
  const double with = std::exchange(with_, std::nullopt).value_or(0);
  why_ = "ordinary runs answer " + std::to_string(std::lround(*found)) + " requests a second, CUDA graphs " +
         std::to_string(std::lround(with));
  pause_ = pause_ == Clock::duration() ? *numbers::graphs_gain_pause
                                       : std::min<Clock::duration>(2 * pause_, *numbers::graphs_gain_longest_pause);
  next_ = now + pause_;
  return with < *numbers::graphs_min_gain * *found;
}

}  // namespace ortmulti
