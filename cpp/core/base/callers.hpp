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

/// Has the work of any number of threads done by a few. The first threads that come do theirs themselves, for as long
/// as they live; that of others is done by threads of this object, while they wait: always by the same one for each.
class Callers : NonCopyable {
 public:
  static constexpr std::size_t most_themselves = 4;
  static constexpr std::size_t most_threads = 4;

  /// Throws what the work throws. Returns false, with nothing done, where it would need a thread after close(). Work
  /// may call again, in its own thread.
  bool call(const std::function<void()>& work);
  /// Waits for the work of its threads.
  void close();

 private:
  struct Places {
    std::atomic<std::size_t> themselves{0};  // taken
    std::atomic<std::size_t> others{0};      // that came
  };

  /// The thread that does the work of the calling one; none: itself.
  std::optional<std::size_t> thread_of_caller() const;

  const std::shared_ptr<Places> places_ = std::make_shared<Places>();
  std::array<AsyncRuns, most_threads> threads_;
};

}  // namespace ortmulti
