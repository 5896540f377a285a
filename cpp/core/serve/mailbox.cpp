#include "core/serve/mailbox.hpp"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <iterator>
#include <system_error>

namespace ortmulti::serve {

Error system_error(const std::string& what) {
  return {ErrorKind::fail, what + ": " + std::generic_category().message(errno)};
}

Socket::~Socket() {
  if (descriptor_ >= 0) {
    ::close(descriptor_);
  }
}

Mailbox::Mailbox() : event_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
  if (event_.get() < 0) {
    throw system_error("the server cannot make an event");
  }
}

void Mailbox::receive(Requests finished) noexcept {
  bool first = false;
  {
    const MutexLock lock(mutex_);
    if (closed_) {
      return;
    }
    first = contents_.empty();
    if (contents_.finished.empty()) {
      contents_.finished = std::move(finished);
    } else {
      contents_.finished.insert(contents_.finished.end(), std::move_iterator(finished.begin()),
                                std::move_iterator(finished.end()));
    }
  }
  if (first) {
    wake();
  }
}

void Mailbox::put(Task task) {
  bool first = false;
  {
    const MutexLock lock(mutex_);
    if (closed_) {
      return;
    }
    first = contents_.empty();
    contents_.tasks.push_back(std::move(task));
  }
  if (first) {
    wake();
  }
}

void Mailbox::wake() const noexcept {
  const std::uint64_t one = 1;
  static_cast<void>(!write(event_.get(), &one, sizeof one));  // fails where it is readable already
}

Mailbox::Contents Mailbox::take() {
  const MutexLock lock(mutex_);
  return std::exchange(contents_, {});
}

void Mailbox::close() {
  Contents dropped;  // without the lock
  const MutexLock lock(mutex_);
  closed_ = true;
  std::swap(dropped, contents_);
}

}  // namespace ortmulti::serve
