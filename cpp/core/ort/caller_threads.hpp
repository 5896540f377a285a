#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>

#include "core/base/async_runs.hpp"
#include "core/base/non_copyable.hpp"

namespace ortmulti {

/// Has the work of any number of threads done by a few. The first threads that call do their work themselves, as long
/// as they live. Each later thread waits while a helper does its work: always the same helper.
class CallerThreads : NonCopyable {
 public:
  static constexpr std::size_t max_direct_callers = 4;
  static constexpr std::size_t max_helpers = 4;

  /// Throws what the work throws. Returns false, with nothing done, if it needs a helper after close(). Work may call
  /// again, in its own thread.
  bool call(const std::function<void()>& work);
  /// Waits for the work of the helpers.
  void close();

 private:
  struct Counts {
    std::atomic<std::size_t> direct{0};  // threads that do their work themselves
    std::atomic<std::size_t> helped{0};  // threads that got a helper so far
  };

  /// The helper of the calling thread; none: it does its work itself.
  std::optional<std::size_t> helper_of_caller() const;

  const std::shared_ptr<Counts> counts_ = std::make_shared<Counts>();
  std::array<AsyncRuns, max_helpers> helpers_;
};

}  // namespace ortmulti
