#pragma once

#include <map>
#include <memory>

#include "core/base/mutex.hpp"
#include "core/pool/request.hpp"

namespace ortmulti {

/// The deadlines of requests that were accepted, for a thread that waits for them. Its users hold the pool's mutex.
class Deadlines {
 public:
  using Clock = Request::Clock;
  using Times = std::multimap<Clock::time_point, std::weak_ptr<Request>>;

  /// The entry of one request; empty if it has no deadline. It is made before the request is accepted, since it takes
  /// memory.
  static Times of(const std::shared_ptr<Request>& request);
  void add(Times one, Request& request);
  void remove(Request& request);

  /// Waits for the next deadline to pass. Returns its request, which has none any more; null after stop().
  std::shared_ptr<Request> wait(Mutex& mutex) ORTMULTI_REQUIRES(mutex);
  void stop();

 private:
  Times times_;
  Condition changed_;
  Clock::time_point wakes_;  // when the thread looks at them again by itself
  bool stopped_ = false;
};

}  // namespace ortmulti
