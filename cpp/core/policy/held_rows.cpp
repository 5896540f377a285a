#include "core/policy/held_rows.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdio>

#include "core/policy/numbers.hpp"

namespace ortmulti {

std::size_t HeldRows::choose(std::size_t most) const noexcept { return holds() ? std::min(most, held_) : most; }

void HeldRows::record(const Run& run, std::size_t most) noexcept {
  if (never_ || (run.by_graph && !holds())) {
    return;
  }
  const bool changed = before_ != 0 && run.padded != before_;
  before_ = run.padded;
  if (run.rows > most) {
    return;  // one request with more rows than are joined
  }
  if (!holds()) {
    look_for_changes(run, changed, most);
  } else if (!pays_) {
    try_held(run, changed);
  } else if (proving_) {
    prove_again(run, changed);
  } else {
    follow(run, most);
  }
}

void HeldRows::look_for_changes(const Run& run, bool changed, std::size_t most) noexcept {
  if (!changed) {  // which may have waited for plans of others all the same
    return;
  }
  if (run.time < *numbers::held_rows_min_change) {
    changes_ = 0;
    return;
  }
  change_ = changes_ == 0 ? run.time : std::min(change_, run.time);
  if (++changes_ == *numbers::held_rows_min_changes) {
    hold(run.rows, most);
  }
}

bool HeldRows::is_dear(const Run& run) const noexcept {
  return run.time >= *numbers::held_rows_min_change && run.time >= *numbers::held_rows_min_ratio * same_;
}

void HeldRows::try_held(const Run& run, bool changed) noexcept {
  if (changed || run.padded != held_) {
    return;  // others were under way
  }
  same_ = same_.count() == 0 ? run.time : std::min(same_, run.time);
  pays_ = *numbers::held_rows_min_ratio * same_ <= change_;
  if (pays_) {
    runs_ = 0;
  } else if (++runs_ == *numbers::held_rows_trial) {
    give_up();
  }
}

// Sizes that were new, or the start of something else, may have taken long but once.
void HeldRows::prove_again(const Run& run, bool changed) noexcept {
  if (!changed || run.by_graph) {
    return;
  }
  proving_ = false;
  since_proof_ = 0;
  proof_after_ *= *numbers::held_rows_later_proofs;
  if (!is_dear(run)) {
    give_up();
  }
}

void HeldRows::follow(const Run& run, std::size_t most) noexcept {
  proving_ = ++since_proof_ >= proof_after_;
  if (run.rows > held_) {
    hold(run.rows, most);  // one request has as many
    return;
  }
  ++runs_;
  full_ += run.more && run.rows == held_ ? 1 : 0;
  largest_ = std::max(largest_, run.rows);
  if (2 * full_ >= *numbers::held_rows_more_after && held_ < most) {
    hold(2 * held_, most);
  } else if (runs_ >= *numbers::held_rows_fewer_after) {
    hold(4 * largest_ <= held_ ? largest_ : held_, most);
  } else if (runs_ % *numbers::held_rows_more_after == 0) {
    full_ = 0;
  }
}

void HeldRows::hold(std::size_t rows, std::size_t most) noexcept {
  held_ = std::min(most, std::bit_ceil(rows));
  runs_ = full_ = largest_ = 0;
}

void HeldRows::give_up() noexcept {
  held_ = 0;
  never_ = true;
}

std::string HeldRows::why() const {
  if (!holds()) {
    return {};
  }
  std::array<char, 128> text{};
  std::snprintf(text.data(), text.size(), "runs are padded to %zu rows: one of another size took %.3g ms, not %.3g",
                held_, static_cast<double>(change_.count()) / 1e6, static_cast<double>(same_.count()) / 1e6);
  return text.data();
}

}  // namespace ortmulti
