#include "core/pool/batching.hpp"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <numeric>
#include <optional>
#include <set>
#include <string>

#include "core/base/error.hpp"

namespace ortmulti {
namespace {

// A dimension that has the same name in all inputs, so that requests can be joined along it.
std::optional<std::size_t> common_axis(const std::vector<ValueInfo>& inputs) {
  std::optional<std::vector<std::string>> names;  // of dimensions that may be it; empty where it is not
  for (const ValueInfo& input : inputs) {
    if (input.shape.empty()) {
      continue;
    }
    const auto& own = input.dimension_names;
    names = names.value_or(own);
    names->resize(std::min(names->size(), own.size()));
    for (std::size_t i = 0; i < names->size(); ++i) {
      (*names)[i] = (*names)[i] == own[i] ? own[i] : "";
    }
  }
  for (std::size_t i = 0; names && i < names->size(); ++i) {
    if (!(*names)[i].empty()) {
      return i;
    }
  }
  return std::nullopt;
}

}  // namespace

std::size_t Batching::padded(std::size_t size) const noexcept {
  const auto next = std::ranges::lower_bound(sizes, size);
  return next == sizes.end() ? size : *next;
}

void Batching::check_inputs(const std::vector<ValueInfo>& inputs) const {
  if (!enabled()) {
    return;
  }
  constexpr std::int64_t none = -2;
  const ValueInfo* unfit = nullptr;
  std::set<std::int64_t> found;
  for (const ValueInfo& input : inputs) {
    if (input.shape.empty()) {
      continue;  // a scalar, or nobody knows
    }
    const std::int64_t size = axis < input.shape.size() ? input.shape[axis] : none;
    found.insert(size);
    if (size != -1 && unfit == nullptr) {
      unfit = &input;
    }
  }
  if (unfit == nullptr) {
    return;
  }
  const std::int64_t size = axis < unfit->shape.size() ? unfit->shape[axis] : none;
  const std::string text = std::to_string(size);
  const bool pads = found.size() == 1 && size > 1;
  if (pads && sizes == std::vector<std::size_t>{static_cast<std::size_t>(size)}) {
    return;  // to which every batch is padded
  }
  std::string advice;
  if (pads) {
    advice = ". Or pad every batch: Batching(max_size=" + text + ", sizes=[" + text + "])";
  } else if (const auto common = common_axis(inputs)) {
    advice = ". Or join along dimension " + std::to_string(*common) +
             ": Batching(max_size=" + std::to_string(max_size) + ", axis=" + std::to_string(*common) + ")";
  }
  throw Error(ErrorKind::invalid_argument,
              "batching joins requests along dimension " + std::to_string(axis) + ", but input '" + unfit->name + "' " +
                  (size == none ? "has no such dimension" : "has the fixed size " + text + " there") +
                  (found.size() == 1 ? "" : ", unlike other inputs") +
                  ": export the model with a dynamic dimension, or load it without batching "
                  "(batching=None, or batching = false in a TOML file)" +
                  advice);
}

bool Batching::fits(const JointSize& run, std::size_t elements) const noexcept {
  if (run.rows > max_size || !padding) {
    return run.rows <= max_size;
  }
  const auto padded = static_cast<double>(elements - run.alone);
  return elements <= padding->max_tokens.value_or(elements) &&
         padded <= padding->max_waste * static_cast<double>(elements);
}

bool Batching::may_join(const JointSize& run, const JointSize& more, const RunCost& cost) const noexcept {
  JointSize joint = run;
  joint.add(more);
  const auto time = [&](const JointSize& size) { return cost.time(size.rows, rounded(size.longest)); };
  return fits(joint, elements(joint)) && (!minds_lengths() || time(joint) <= time(run) + time(more));
}

bool Batching::is_full(const JointSize& run) const noexcept {
  JointSize more = run;
  more.add({1, 1, 1, 1});
  return run.rows >= max_size || (padding && elements(more) > padding->max_tokens.value_or(elements(more)));
}

std::vector<std::size_t> Batching::choose(const std::vector<JointSize>& candidates, const RunCost& cost) const {
  std::vector<std::size_t> order(candidates.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  if (!minds_lengths()) {
    JointSize run;
    std::erase_if(order, [&](std::size_t one) {
      JointSize joint = run;
      joint.add(candidates[one]);
      const bool joins = one == 0 || fits(joint, elements(joint));
      run = joins ? joint : run;
      return !joins;
    });
    return order;
  }
  std::ranges::stable_sort(order, {}, [&](std::size_t one) { return candidates[one].longest; });
  // Those that the run of the first candidate could reach. Of all ways to cut their order into runs, the one that takes
  // the least time: for each end of a run, its best begin.
  const auto first = std::ranges::find(order, std::size_t{0}) - order.begin();
  const auto reach = static_cast<std::ptrdiff_t>(max_size);
  const bool more_above = static_cast<std::ptrdiff_t>(order.size()) > first + reach;
  const bool more_below = first > reach;
  order.erase(order.begin() + (more_above ? first + reach : static_cast<std::ptrdiff_t>(order.size())), order.end());
  order.erase(order.begin(), order.begin() + (more_below ? first - reach : 0));
  const auto own = static_cast<std::size_t>(more_below ? reach : first);
  std::vector<double> least(order.size() + 1, 0);
  std::vector<std::size_t> begins(order.size() + 1, 0);
  for (std::size_t end = 1; end <= order.size(); ++end) {
    least[end] = std::numeric_limits<double>::infinity();
    const std::size_t length = padding->rounded(candidates[order[end - 1]].longest);
    RunCost::Times times(cost, length);
    const std::size_t full = std::max<std::size_t>(
        1, std::min(max_size, padding->max_tokens.value_or(max_size * length) / std::max<std::size_t>(1, length)));
    JointSize run;
    for (std::size_t begin = end; begin-- > 0;) {
      run.add(candidates[order[begin]]);
      if (begin + 1 < end && !fits(run, run.rows * length)) {
        break;
      }
      double time = times.of(run.rows);
      // At an edge behind which more waits, others will fill that run.
      if ((more_below && begin == 0 && end <= own) || (more_above && end == order.size() && begin > own)) {
        time = std::min(time, times.of(full) * static_cast<double>(run.rows) / static_cast<double>(full));
      }
      time += least[begin];
      if (begin + 1 == end || time < least[end]) {
        least[end] = time;
        begins[end] = begin;
      }
    }
  }
  std::size_t end = order.size();
  while (begins[end] > own) {
    end = begins[end];
  }
  std::vector<std::size_t> chosen(order.begin() + static_cast<std::ptrdiff_t>(begins[end]),
                                  order.begin() + static_cast<std::ptrdiff_t>(end));
  std::ranges::sort(chosen);
  return chosen;
}

}  // namespace ortmulti
