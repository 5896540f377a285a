#pragma once

#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

namespace ortmulti {

/// One named stretch of work of one thread.
struct Span {
  std::string name;
  std::int64_t start_ns;  ///< Steady clock (CLOCK_MONOTONIC), as Python's time.monotonic_ns().
  std::int64_t end_ns;
  std::int64_t thread;  ///< The kernel's thread number, as Python's threading.get_native_id().
  std::string device;   ///< "cuda:3", "cpu", or empty for what belongs to no device.
};

std::int64_t steady_now_ns() noexcept;
std::int64_t this_thread() noexcept;  ///< As Span::thread.

/// The spans of a creation or a run. May be written and read from any thread.
class Timeline {
 public:
  void add(std::string_view name, std::int64_t start_ns, std::int64_t end_ns, std::string_view device = {});
  void add(Span span);
  std::vector<Span> spans() const;

 private:
  mutable std::mutex mutex_;
  std::vector<Span> spans_;
};

/// Adds the span from its construction to its destruction. Costs a comparison when there is no timeline.
class ScopedSpan {
 public:
  /// `name` and `device` must outlive the span.
  ScopedSpan(Timeline* timeline, std::string_view name, std::string_view device = {}) noexcept
      : timeline_(timeline), name_(name), device_(device), start_ns_(timeline == nullptr ? 0 : steady_now_ns()) {}
  ~ScopedSpan();
  ScopedSpan(const ScopedSpan&) = delete;
  ScopedSpan& operator=(const ScopedSpan&) = delete;

 private:
  Timeline* timeline_;
  std::string_view name_;
  std::string_view device_;
  std::int64_t start_ns_;
};

}  // namespace ortmulti
