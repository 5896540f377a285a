#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "core/base/error.hpp"
#include "core/base/mutex.hpp"
#include "core/base/non_copyable.hpp"
#include "core/pool/request.hpp"

namespace ortmulti::serve {

/// An open descriptor, of which there may be many more than Descriptor has places for.
class Socket : NonCopyable {
 public:
  Socket() = default;
  explicit Socket(int descriptor) noexcept : descriptor_(descriptor) {}
  Socket(Socket&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
  Socket& operator=(Socket&& other) noexcept {
    std::swap(descriptor_, other.descriptor_);
    return *this;
  }
  ~Socket();

  int get() const noexcept { return descriptor_; }

 private:
  int descriptor_ = -1;
};

/// The error of a system call that just failed: "WHAT: REASON".
Error system_error(const std::string& what);

/// Work that other threads give to a loop. Who holds it may give work at any time: after the loop's end it is dropped.
class Mailbox : public Receiver, NonCopyable {
 public:
  using Task = std::function<void()>;
  struct Contents {
    Requests finished;
    std::vector<Task> tasks;
    bool empty() const noexcept { return finished.empty() && tasks.empty(); }
  };

  /// Throws Error.
  Mailbox();

  void receive(Requests finished) noexcept override;
  void put(Task task);
  /// Has the loop look around.
  void wake() const noexcept;

  /// Readable, by its edge, when something was put into an empty mailbox.
  int descriptor() const noexcept { return event_.get(); }
  Contents take();
  void close();

 private:
  Socket event_;
  Mutex mutex_;
  Contents contents_ ORTMULTI_GUARDED_BY(mutex_);
  bool closed_ ORTMULTI_GUARDED_BY(mutex_) = false;
};

}  // namespace ortmulti::serve
