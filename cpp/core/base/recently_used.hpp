#pragma once

#include <cstddef>
#include <list>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

namespace ortmulti {

/// Values by keys, of at most so many: those that were used last. Not thread-safe.
template <typename Value>
class RecentlyUsed {
 public:
  explicit RecentlyUsed(std::size_t most) : most_(most) {}

  bool has(const std::string& key) const { return by_key_.contains(key); }

  /// The value of the key, which becomes the most recently used; a new one where there is none.
  Value& use(const std::string& key) {
    if (const auto found = by_key_.find(key); found != by_key_.end()) {
      entries_.splice(entries_.begin(), entries_, found->second);
      return entries_.front().second;
    }
    if (entries_.size() == most_) {
      by_key_.erase(entries_.back().first);
      entries_.pop_back();
    }
    entries_.emplace_front(key, Value{});
    by_key_.emplace(entries_.front().first, entries_.begin());
    return entries_.front().second;
  }

  /// The most recently used value; null: none.
  const Value* latest() const { return entries_.empty() ? nullptr : &entries_.front().second; }

  void clear() {
    by_key_.clear();
    entries_.clear();
  }

 private:
  using Entries = std::list<std::pair<const std::string, Value>>;

  std::size_t most_;
  Entries entries_;  // the most recently used first
  std::unordered_map<std::string_view, typename Entries::iterator> by_key_;
};

}  // namespace ortmulti
