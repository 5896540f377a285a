#include "core/policy/residency_policy.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <ranges>

#include "core/base/error.hpp"
#include "core/policy/numbers.hpp"

namespace ortmulti {

std::uint64_t ResidencyPolicy::Model::bytes_at(SleepLevel at) const {
  const auto found = sleeps.find(at);
  return at == SleepLevel::awake ? bytes : found == sleeps.end() ? 0 : found->second.bytes;
}

std::uint64_t ResidencyPolicy::least(const Entry& entry, double now) {
  const Model& model = entry.model;
  const bool in_line = model.level != SleepLevel::awake && entry.activity.waiting > 0;  // to be awake itself
  const bool refuses = entry.refusals >= *numbers::residency_most_refusals && now < entry.refuses_until;
  if (model.loading) {
    return 0;
  }
  const std::uint64_t at_rest = model.bytes_at(model.level);
  const bool stays = model.pinned || in_line || refuses || model.sleeps.empty();
  return stays ? at_rest : std::min(at_rest, model.sleeps.rbegin()->second.bytes);
}

std::uint64_t ResidencyPolicy::size(const Entry& entry) {
  return entry.model.bytes_at(entry.state == State::waking ? SleepLevel::awake : entry.model.level);
}

ResidencyPolicy::Id ResidencyPolicy::add(const Model& model, const std::string& name, double now) {
  if (model.bytes > budget_) {
    throw Error(ErrorKind::out_of_memory, name + " takes " + megabytes(model.bytes) + ", and the budget is " +
                                              megabytes(budget_) + ": raise the budget, or use a smaller model");
  }
  Entry entry;
  entry.model = model;
  entry.observed = entry.used = entry.woken = entry.not_before = entry.refuses_until = now;
  entries_.emplace(next_, entry);
  return next_++;
}

void ResidencyPolicy::set_kept(Id id, SleepLevel level, std::optional<std::uint64_t> bytes) {
  auto& sleeps = entries_.at(id).model.sleeps;
  if (bytes) {
    sleeps[level].bytes = *bytes;
  } else {
    sleeps.erase(level);
  }
}

void ResidencyPolicy::observe(Id id, const PoolActivity& activity, double now) {
  Entry& entry = entries_.at(id);
  if (const double passed = now - entry.observed; passed > 0) {
    const double old = std::exp(-passed / *numbers::residency_memory_of_rates);
    const std::uint64_t arrived = std::max(activity.arrived, entry.arrived);
    entry.rate = entry.rate * old + (1 - old) * static_cast<double>(arrived - entry.arrived) / passed;
    entry.used = arrived > entry.arrived ? now : entry.used;
    entry.arrived = arrived;
    entry.observed = now;
  }
  entry.activity = activity;
}

double ResidencyPolicy::cost(const Entry& entry, double wake, double now) {
  if (entry.model.level != SleepLevel::awake) {
    // Little memory for a wake that takes much longer: only for models that nobody uses, or where nothing else helps.
    return now - entry.used > *numbers::residency_unused_after ? 0 : std::max(wake, *numbers::residency_horizon);
  }
  const double likely = 1 - std::exp(-entry.rate * *numbers::residency_horizon);
  return wake * likely + (entry.activity.busy > 0 ? entry.activity.run_seconds : 0);
}

void ResidencyPolicy::add_candidates(Id id, const Entry& entry, double now, std::vector<Candidate>& candidates,
                                     std::optional<double>& until) {
  const Model& model = entry.model;
  const bool waits = entry.activity.waiting > 0;
  const std::uint64_t now_taken = size(entry);
  const auto next = std::find_if(model.sleeps.upper_bound(model.level), model.sleeps.end(),
                                 [now_taken](const auto& level) { return level.second.bytes < now_taken; });
  if (entry.state != State::resting || model.pinned || next == model.sleeps.end() ||
      (waits && model.level != SleepLevel::awake)) {  // it is in line to be awake itself
    return;
  }
  const auto& [to, asleep] = *next;
  double earliest = std::max(entry.not_before, entry.refuses_until);
  if (waits) {
    earliest = std::max(earliest, entry.woken + asleep.wake);
  }
  if (now < earliest) {
    until = std::min(until.value_or(earliest), earliest);
  } else {
    candidates.push_back({{id, to}, now_taken - asleep.bytes, cost(entry, asleep.wake, now), model.protect});
  }
}

ResidencyPolicy::Decision ResidencyPolicy::decide(Id id, double now, std::uint64_t at_least) {
  Entry& wanted = entries_.at(id);
  Decision decision;
  const std::uint64_t all = used() + needed(wanted);
  const std::uint64_t missing = std::max(all - std::min(all, budget_), at_least);
  if (missing == 0) {
    grant(id);
    decision.kind = Decision::Kind::wake;
    return decision;
  }
  std::vector<Candidate> candidates;
  std::uint64_t freed = falling();
  std::uint64_t could_be_freed = 0;
  for (const auto& [other, entry] : entries_) {
    if (other == id) {
      continue;
    }
    could_be_freed += size(entry) - least(entry, now);
    add_candidates(other, entry, now, candidates, decision.until);
  }
  if (could_be_freed < missing) {
    decision.kind = Decision::Kind::impossible;
    return decision;
  }
  // The cheapest for each byte first. Then those are left out again without which the others suffice.
  std::ranges::sort(candidates, [](const Candidate& a, const Candidate& b) {
    if (a.last != b.last) {
      return b.last;
    }
    return a.cost * static_cast<double>(b.bytes) < b.cost * static_cast<double>(a.bytes);
  });
  auto end = candidates.begin();
  for (; end != candidates.end() && freed < missing; ++end) {
    freed += end->bytes;
  }
  if (end == candidates.begin()) {
    return decision;  // those that fall asleep already suffice, or none may sleep yet
  }
  candidates.erase(end, candidates.end());
  for (const Candidate& next : std::views::reverse(candidates)) {
    if (freed >= missing + next.bytes) {
      freed -= next.bytes;
    } else {
      decision.evictions.push_back(next.eviction);
    }
  }
  decision.kind = Decision::Kind::evict;
  decision.until.reset();
  return decision;
}

bool ResidencyPolicy::may_pass(Id id, Id first) const {
  const std::uint64_t free = budget_ - std::min(budget_, used());
  const std::uint64_t needs = needed(entries_.at(id));
  return needs <= free && free - needs + falling() >= needed(entries_.at(first));
}

std::uint64_t ResidencyPolicy::falling() const {
  return std::accumulate(entries_.begin(), entries_.end(), std::uint64_t{0}, [](std::uint64_t sum, const auto& each) {
    const Entry& entry = each.second;
    return sum + (entry.state == State::falling ? size(entry) - entry.model.bytes_at(entry.target) : 0);
  });
}

void ResidencyPolicy::falls(const Eviction& eviction) {
  Entry& entry = entries_.at(eviction.model);
  entry.state = State::falling;
  entry.target = eviction.to;
}

void ResidencyPolicy::fell(Id id, SleepLevel level) {
  Entry& entry = entries_.at(id);
  entry.state = State::resting;
  entry.model.level = std::max(entry.model.level, level);
  entry.patience = *numbers::residency_first_patience;
  entry.refusals = 0;
}

void ResidencyPolicy::stayed(Id id, double now) {
  Entry& entry = entries_.at(id);
  entry.state = State::resting;
  entry.not_before = now + *numbers::residency_awake_between_tries;
  entry.patience *= 2;
}

void ResidencyPolicy::refused(Id id, double now) {
  Entry& entry = entries_.at(id);
  entry.state = State::resting;
  entry.refuses_until =
      now + (++entry.refusals < *numbers::residency_most_refusals ? *numbers::residency_asked_again
                                                                  : *numbers::residency_asked_again_late);
}

void ResidencyPolicy::woke(Id id, double now, double seconds) {
  Entry& entry = entries_.at(id);
  if (const auto asleep = entry.model.sleeps.find(entry.model.level); asleep != entry.model.sleeps.end()) {
    double& known = asleep->second.wake;
    known = known == 0 ? seconds : known + *numbers::residency_weight_of_newest_wake * (seconds - known);
  }
  entry.state = State::resting;
  entry.model.level = SleepLevel::awake;
  entry.woken = now;
}

std::uint64_t ResidencyPolicy::models() const {
  return std::accumulate(entries_.begin(), entries_.end(), std::uint64_t{0},
                         [](std::uint64_t sum, const auto& each) { return sum + size(each.second); });
}

std::uint64_t ResidencyPolicy::used() const { return other_ + models(); }

bool ResidencyPolicy::remakes_sessions() const {
  return std::ranges::any_of(entries_, [](const auto& each) {
    const Entry& entry = each.second;
    const SleepLevel level = entry.state == State::falling ? entry.target : entry.model.level;
    return entry.state != State::resting && !entry.model.loading && traits_of(level).frees_runners;
  });
}

}  // namespace ortmulti
