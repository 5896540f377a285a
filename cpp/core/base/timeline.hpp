#pragma once

#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <type_traits>
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

/// Text of which a view can be kept: no temporary string, which would be gone with the statement.
template <typename Text>
inline constexpr bool is_lasting_text =
    std::is_convertible_v<Text, std::string_view> &&
    (std::is_lvalue_reference_v<Text> || !std::is_same_v<std::remove_cv_t<std::remove_reference_t<Text>>, std::string>);

/// Adds the span from its construction to its destruction. Costs a comparison when there is no timeline.
class ScopedSpan {
 public:
  /// `name` and `device` must outlive the span; temporary strings are refused by the compiler.
  template <typename Name, typename Device = std::string_view,
            typename = std::enable_if_t<is_lasting_text<Name&&> && is_lasting_text<Device&&>>>
  ScopedSpan(Timeline* timeline, Name&& name, Device&& device = {}) noexcept
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
