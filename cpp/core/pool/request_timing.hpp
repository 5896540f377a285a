#pragma once

#include <cstddef>

#include "core/base/device.hpp"
#include "core/pool/request.hpp"

namespace ortmulti {

/// Where the time of a request that is done went: waiting in the queue, and for others to join; copies; the run.
struct RequestTiming {
  Request::Clock::duration queued;
  Request::Clock::duration joined;
  Request::Clock::duration copied;
  Request::Clock::duration ran;
  Device ran_on;
  std::size_t run_size;
};

inline RequestTiming timing_of(const Request& request) noexcept {
  const auto joined = request.assigned == Request::Clock::time_point() ? request.started : request.assigned;
  return {.queued = joined - request.submitted + request.waiting_for_session,
          .joined = request.started - joined,
          .copied = request.copying,
          .ran = request.ended - request.started - request.waiting_for_session - request.copying,
          .ran_on = request.ran_on,
          .run_size = request.run_size};
}

}  // namespace ortmulti
