#include "core/cuda/graph_capture.hpp"

#include <condition_variable>
#include <cstddef>
#include <mutex>
#include <utility>

namespace ortmulti {
namespace {

struct Uses {
  std::mutex mutex;
  std::condition_variable changed;
  std::size_t brief = 0;
  std::size_t lasting = 0;
  bool sole = false;       // something is captured
  bool sole_next = false;  // as soon as the brief uses have ended

  std::size_t& count(CudaUse::Kind kind) { return kind == CudaUse::Kind::brief ? brief : lasting; }
  bool closed() const { return sole || sole_next; }
};

Uses& uses() {
  static auto& uses = *new Uses();  // NOLINT(cppcoreguidelines-owning-memory): needed up to exit
  return uses;
}

// How many uses of this thread are within each other.
std::size_t& nested() {
  thread_local std::size_t nested = 0;
  return nested;
}

}  // namespace

CudaUse::CudaUse(bool of_cuda, Kind kind) : of_cuda_(of_cuda), kind_(kind) {
  if (of_cuda_ && nested()++ == 0) {
    Uses& all = uses();
    std::unique_lock lock(all.mutex);
    all.changed.wait(lock, [&all] { return !all.closed(); });
    ++all.count(kind_);
  }
}

CudaUse::~CudaUse() {
  if (of_cuda_ && --nested() == 0) {
    Uses& all = uses();
    const std::lock_guard lock(all.mutex);
    --all.count(kind_);
    if (all.sole_next) {
      all.changed.notify_all();
    }
  }
}

std::optional<SoleUse> SoleUse::try_begin() {
  if (nested() != 0) {
    return std::nullopt;
  }
  Uses& all = uses();
  std::unique_lock lock(all.mutex);
  all.changed.wait(lock, [&all] { return !all.closed(); });
  if (all.lasting != 0) {
    return std::nullopt;
  }
  all.sole_next = true;
  all.changed.wait(lock, [&all] { return all.brief == 0; });
  all.sole_next = false;
  all.sole = true;
  nested() = 1;
  return SoleUse();
}

SoleUse::SoleUse(SoleUse&& other) noexcept : held_(std::exchange(other.held_, false)) {}

SoleUse::~SoleUse() {
  if (held_) {
    nested() = 0;
    Uses& all = uses();
    const std::lock_guard lock(all.mutex);
    all.sole = false;
    all.changed.notify_all();
  }
}

}  // namespace ortmulti
