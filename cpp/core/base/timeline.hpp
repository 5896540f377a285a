#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/non_copyable.hpp"

namespace ortmulti {

/// One named stretch of work of one thread.
struct Span {
  std::string name;
  std::int64_t start_ns;  ///< Steady clock (CLOCK_MONOTONIC), as Python's time.monotonic_ns().
  std::int64_t end_ns;
  std::int64_t thread;       ///< The kernel's thread number, as Python's threading.get_native_id().
  std::string device;        ///< "cuda:3", "cpu", or empty for what belongs to no device.
  std::string request = {};  ///< Id of the request that it is part of; empty for what is none's, or where it has none.
};

std::int64_t steady_now_ns() noexcept;
std::int64_t this_thread() noexcept;  ///< As Span::thread.

/// The spans of a creation and of traced requests: the first ones, and so many of the last. May be written and read
/// from any thread.
class Timeline {
 public:
  static constexpr std::size_t max_first = 10'000;
  static constexpr std::size_t max_last = 10'000;

  void add(std::string_view name, std::int64_t start_ns, std::int64_t end_ns, std::string_view device = {},
           std::string_view request = {});
  void add(Span span);
  /// A text of this moment.
  void note(std::string_view text);
  std::vector<Span> spans() const;

 private:
  mutable std::mutex mutex_;
  std::vector<Span> first_;
  std::deque<Span> last_;
};

/// Where a request's spans go, and what they say it is.
struct RequestTrace {
  std::shared_ptr<Timeline> timeline;  ///< Null: nowhere.
  std::string id;
};

/// Adds the span from its construction to its destruction. Costs a comparison when there is no timeline.
class ScopedSpan : NonCopyable {
 public:
  explicit ScopedSpan(Timeline* timeline, std::string_view name, std::string_view device = {},
                      std::string_view request = {})
      : timeline_(timeline) {
    if (timeline != nullptr) {
      span_ = {std::string(name), steady_now_ns(), 0, this_thread(), std::string(device), std::string(request)};
    }
  }
  ScopedSpan(const RequestTrace& trace, std::string_view name, std::string_view device)
      : ScopedSpan(trace.timeline.get(), name, device, trace.id) {}
  ~ScopedSpan();

 private:
  Timeline* timeline_;
  std::optional<Span> span_;
};

}  // namespace ortmulti
