#include "core/pool/waiting.hpp"

#include <algorithm>
#include <limits>
#include <utility>

#include "core/policy/numbers.hpp"

namespace ortmulti {

void WaitingRequests::insert(RequestQueue& queue, const std::shared_ptr<Request>& request) {
  request->number_ = request->number_ == 0 ? ++last_number_ : request->number_;
  request->position_ = queue.insert(queue.end(), request);  // where most belong
  request->phase_ = Request::Phase::waiting;
  ++size_;
  prioritized_ += request->priority != 0 ? 1 : 0;
}

std::shared_ptr<Request> WaitingRequests::take(RequestQueue& queue, Request& request) {
  std::shared_ptr<Request> taken = std::move(queue.extract(request.position_).value());
  --size_;
  prioritized_ -= request.priority != 0 ? 1 : 0;
  request.phase_ = Request::Phase::unqueued;
  return taken;
}

Request* WaitingRequests::turn_of_lower(const RequestQueue& of_device) {
  if (prioritized_ == 0) {
    return nullptr;
  }
  const auto first_below = [&](std::int64_t priority) {
    Request* first = nullptr;
    for (const RequestQueue* const queue : {&of_device, static_cast<const RequestQueue*>(&for_any_)}) {
      const auto found = queue->lower_bound(LowerPriority{priority});
      if (found != queue->end() && (first == nullptr || (*found)->goes_before(*first))) {
        first = found->get();
      }
    }
    return first;
  };
  const Request* const highest = first_below(std::numeric_limits<std::int64_t>::max());
  Request* const lower = highest == nullptr ? nullptr : first_below(highest->priority);
  if (lower == nullptr || ++since_lower_ < *numbers::queue_lower_every) {
    return nullptr;
  }
  since_lower_ = 0;
  Request* const next = first_below(std::min(last_lower_, highest->priority));
  Request* const turn = next == nullptr ? lower : next;
  last_lower_ = turn->priority;
  return turn;
}

}  // namespace ortmulti
