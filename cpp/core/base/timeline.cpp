#include "core/base/timeline.hpp"

#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <new>
#include <utility>

namespace ortmulti {

std::int64_t steady_now_ns() noexcept {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
}

std::int64_t this_thread() noexcept { return static_cast<std::int64_t>(syscall(SYS_gettid)); }

void Timeline::add(std::string_view name, std::int64_t start_ns, std::int64_t end_ns, std::string_view device) {
  add(Span{std::string(name), start_ns, end_ns, this_thread(), std::string(device)});
}

void Timeline::add(Span span) {
  const std::lock_guard lock(mutex_);
  spans_.push_back(std::move(span));
}

std::vector<Span> Timeline::spans() const {
  const std::lock_guard lock(mutex_);
  return spans_;
}

ScopedSpan::~ScopedSpan() {
  if (span_) {
    span_->end_ns = steady_now_ns();
    try {
      timeline_->add(std::move(*span_));
    } catch (const std::bad_alloc&) {  // A span lost to a full memory is no reason to fail what it measured.
    }
  }
}

}  // namespace ortmulti
