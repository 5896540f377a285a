#pragma once

#include <atomic>
#include <cstddef>
#include <functional>
#include <memory>

#include "core/base/async_runs.hpp"
#include "core/base/non_copyable.hpp"

namespace ortmulti {

/// Has the work of any number of threads done by a few. The first threads that come do theirs themselves, for as long
/// as they live; that of others is done by threads of this object, while they wait.
class Callers : NonCopyable {
 public:
  static constexpr std::size_t most_themselves = 4;
  static constexpr std::size_t most_threads = 4;

  /// Throws what the work throws; Error with ErrorKind::closed where it would need a thread after close().
  void call(const std::function<void()>& work);
  /// Waits for the work of its threads.
  void close() { threads_.close(false); }

 private:
  using Places = std::atomic<std::size_t>;  // taken

  bool have_place() const;

  const std::shared_ptr<Places> places_ = std::make_shared<Places>(0);
  AsyncRuns threads_;
};

}  // namespace ortmulti
