#include "core/policy/joining.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

#include "core/policy/numbers.hpp"

namespace ortmulti {

void Joining::set_outputs(Outputs outputs) {
  outputs_ = std::move(outputs);
  to_prove_ = outputs_.unproven ? *numbers::joining_proving_runs : 0;
}

const std::string* Joining::why_apart(const std::vector<const char*>& outputs,
                                      const std::vector<const char*>& inputs) const {
  const auto find = [](const Apart& apart, const std::vector<const char*>& names) -> const std::string* {
    for (std::size_t i = 0; i < names.size() && !apart.empty(); ++i) {
      if (const auto found = apart.find(names[i]); found != apart.end()) {
        return &found->second;
      }
    }
    return nullptr;
  };
  const std::string* const why = find(outputs_.apart, outputs);
  return why != nullptr ? why : find(inputs_, inputs);
}

bool Joining::joins(const Key& key, Caller caller) const {
  if (stopped_ || (!stopped_keys_.empty() && stopped_keys_.contains(key))) {
    return false;
  }
  if (caller == 0 || faults_.empty()) {
    return true;
  }
  const auto found = faults_.find(caller);
  return found == faults_.end() || found->second < *numbers::joining_faulty;
}

void Joining::stop(const Key& key) {
  if (stopped_keys_.size() == max_kept) {
    stopped_keys_.clear();
  }
  stopped_keys_.insert(key);
}

Joining::Audit Joining::audit(const Key& key, std::size_t requests, std::size_t rows, std::chrono::nanoseconds time) {
  Audit due;
  if (!outputs_.audits) {
    return due;
  }
  ran_ += time;
  due.proves = to_prove_ > 0;
  due.in_time = static_cast<double>(spent_.count()) <= static_cast<double>(ran_.count()) * *numbers::joining_max_share;
  const bool at_once = seen_.size() < *numbers::joining_always_audited && spent_ < *numbers::joining_always_for;
  if (!due.proves && !due.in_time && !at_once) {
    return due;
  }
  char size = 0;
  for (; rows > 1; rows /= 2) {
    ++size;
  }
  due.shape = key + size;
  if (due.proves) {
    due.which.resize(requests);
    std::iota(due.which.begin(), due.which.end(), std::size_t{0});
  } else if (due.in_time || !seen_.contains(due.shape)) {
    random_ = random_ * 6364136223846793005U + 1442695040888963407U;  // Knuth's linear congruential generator
    due.which.push_back(static_cast<std::size_t>((random_ >> 33U) % requests));
  }
  return due;
}

void Joining::Audit::are_alike(std::size_t requests) {
  which.assign(in_time ? 1 : 0, requests - 1);
  shape.clear();
  proves = false;
}

void Joining::audited(const Audit& done, std::chrono::nanoseconds time) {
  audits_ += done.which.size();
  if (done.proves) {
    to_prove_ -= std::min<std::size_t>(to_prove_, 1);  // several may have been due at the same time
  } else {
    spent_ += time;
  }
  if (!done.shape.empty() && seen_.size() < *numbers::joining_always_audited) {
    seen_.insert(done.shape);
  }
}

bool Joining::failed_together(const Key& key) {
  if (failures_.size() == max_kept) {
    failures_.clear();
  }
  return ++failures_[key] > 1;
}

void Joining::note(Caller caller, bool failed) {
  if (caller == 0 || (!failed && faults_.empty())) {
    return;
  }
  if (failed) {
    if (faults_.size() == max_kept) {
      faults_.clear();
    }
    std::size_t& faults = faults_[caller];
    faults = std::min(faults + 2, *numbers::joining_max_faults);
  } else if (const auto found = faults_.find(caller); found != faults_.end() && --found->second == 0) {
    faults_.erase(found);
  }
}

}  // namespace ortmulti
