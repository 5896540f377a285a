#include <system_error>
#include <utility>

#include "core/pool/pool_parts.hpp"

namespace ortmulti {

std::exception_ptr Pool::deadline_error(const Request& request, const std::string& what) {
  const auto allowed = request.deadline.value_or(request.asked) - request.asked;
  const auto milliseconds = std::chrono::ceil<std::chrono::milliseconds>(allowed).count();
  return make_error(ErrorKind::deadline, what + std::to_string(milliseconds) + " ms");
}

void Pool::start_timer(const Request& request) {
  if (!request.deadline || timer_.joinable()) {
    return;
  }
  try {
    timer_ = std::thread(&Pool::keep_deadlines, this);
  } catch (const std::system_error& error) {
    throw Error(ErrorKind::fail, std::string("the system gives no further thread for deadlines: ") + error.what());
  }
}

Pool::Timers Pool::timer_of(const std::shared_ptr<Request>& request) {
  Timers timer;
  if (request->deadline) {
    timer.emplace(*request->deadline, request);
  }
  return timer;
}

void Pool::add_timer(Request& request, Timers& timer) noexcept {
  if (timer.empty()) {
    return;
  }
  request.timer_ = timers_.insert(timer.extract(timer.begin()));
  if (*request.timer_ == timers_.begin()) {
    timers_changed_.notify_one();
  }
}

void Pool::keep_deadlines() {
  Lock lock(mutex_);
  Requests finished;
  finished.reserve(1);
  while (!timer_stops_) {
    if (timers_.empty()) {
      timers_changed_.wait(lock);
      continue;
    }
    const Clock::time_point first = timers_.begin()->first;
    if (first > Clock::now()) {
      timers_changed_.wait_until(lock, first);
      continue;
    }
    auto request = timers_.begin()->second.lock();
    timers_.erase(timers_.begin());
    request->timer_.reset();
    auto taken = take_back(*request);
    if (!taken) {
      request->expired_ = true;
      end_early(*request);
      continue;
    }
    finished.push_back(std::move(taken));
    ++failed_waiting_;
    finish(*request, Request::Outcome::failed,
           deadline_error(*request, "the request still waited for a session after "));
    if (closing_ && settled()) {
      settled_.notify_all();
    }
    lock.unlock();
    request.reset();  // which, freed under the lock, could not ask the pool for anything
    announce(finished);
    lock.lock();
  }
}
}  // namespace ortmulti
