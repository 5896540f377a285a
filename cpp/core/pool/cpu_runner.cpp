#include "core/pool/cpu_runner.hpp"

#include <exception>
#include <utility>

#include "core/pool/request.hpp"

namespace ortmulti {

std::shared_ptr<Session> CpuSessions::one_thread() const {
  const MutexLock lock(mutex_);
  return one_thread_;
}

std::optional<std::string> CpuSessions::why_no_more() {
  {
    const MutexLock lock(mutex_);
    if (being_made_) {
      return std::nullopt;
    }
    if (one_thread_ || !why_not_.empty()) {
      return std::exchange(why_not_, "");
    }
    being_made_ = true;
  }
  wanted_(shared_from_this());
  return std::nullopt;
}

bool CpuSessions::drop() {
  std::shared_ptr<Session> freed;  // without the lock
  const MutexLock lock(mutex_);
  freed.swap(one_thread_);
  return freed != nullptr;
}

void CpuSessions::add(std::shared_ptr<Session> one_thread) {
  const MutexLock lock(mutex_);
  being_made_ = false;
  if (!ended_) {
    one_thread_ = std::move(one_thread);
  }
}

void CpuSessions::not_made(const std::string& reason) {
  const MutexLock lock(mutex_);
  being_made_ = false;
  why_not_ = "there is no session of one thread: " + reason;
}

void CpuSessions::end() {
  {
    const MutexLock lock(mutex_);
    ended_ = true;
  }
  drop();
}

bool CpuSessions::ended() const {
  const MutexLock lock(mutex_);
  return ended_;
}

void CpuRunner::run(Request& request) {
  const auto one_thread = request.side_by_side ? sessions_->one_thread() : nullptr;
  run_with(one_thread ? one_thread : loaded(), request);
}

std::optional<Session::Arena> CpuRunner::arena() noexcept {
  auto arena = SessionRunner::arena();
  try {
    const auto one_thread = sessions_->one_thread();
    const auto more = one_thread ? one_thread->arena() : std::nullopt;
    if (arena && more) {
      arena->add(*more);
    }
    return arena;
  } catch (const std::exception&) {
    return std::nullopt;  // there is no memory to ask with
  }
}

void CpuRunner::shrink_arena(Session::Shrink when) {
  SessionRunner::shrink_arena(when);
  if (const auto one_thread = sessions_->one_thread()) {
    one_thread->shrink_arena(when);
  }
}

std::optional<std::string> CpuRunner::why_no_more() noexcept {
  try {
    return sessions_->why_no_more();
  } catch (const std::exception& error) {
    return error.what();
  }
}

}  // namespace ortmulti
