#include "core/pool/deadlines.hpp"

#include <utility>

namespace ortmulti {

Deadlines::Times Deadlines::of(const std::shared_ptr<Request>& request) {
  Times one;
  if (request->deadline) {
    one.emplace(*request->deadline, request);
  }
  return one;
}

void Deadlines::add(Times one, Request& request) {
  if (one.empty()) {
    return;
  }
  const auto added = times_.insert(one.extract(one.begin()));
  request.deadline_entry_ = added;
  if (added->first < wakes_) {
    changed_.notify_one();
  }
}

void Deadlines::remove(Request& request) {
  if (request.deadline_entry_) {
    times_.erase(*request.deadline_entry_);
    request.deadline_entry_.reset();
  }
}

std::shared_ptr<Request> Deadlines::wait(Mutex& mutex) {
  while (!stopped_) {
    if (times_.empty()) {
      wakes_ = Clock::time_point::max();
      changed_.wait(mutex);
      continue;
    }
    const Clock::time_point first = times_.begin()->first;
    if (first > Clock::now()) {
      wakes_ = first;  // most requests are answered before their deadline: then it goes on to wait for the next
      changed_.wait_until(mutex, first);
      continue;
    }
    auto request = times_.begin()->second.lock();
    remove(*request);
    return request;
  }
  return nullptr;
}

void Deadlines::stop() {
  stopped_ = true;
  changed_.notify_all();
}

}  // namespace ortmulti
