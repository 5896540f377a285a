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

void Timeline::add(std::string_view name, std::int64_t start_ns, std::int64_t end_ns, std::string_view device,
                   std::string_view request) {
  add(Span{std::string(name), start_ns, end_ns, this_thread(), std::string(device), std::string(request)});
}

void Timeline::add(Span span) {
  const std::lock_guard lock(mutex_);
  if (first_.size() < max_first) {
    first_.push_back(std::move(span));
    return;
  }
  if (last_.size() == max_last) {
    last_.pop_front();
  }
  last_.push_back(std::move(span));
}

void Timeline::note(std::string_view text) {
  const std::int64_t now = steady_now_ns();
  add(text, now, now);
}

std::vector<Span> Timeline::spans() const {
  const std::lock_guard lock(mutex_);
  std::vector<Span> spans = first_;
  spans.insert(spans.end(), last_.begin(), last_.end());
  return spans;
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
