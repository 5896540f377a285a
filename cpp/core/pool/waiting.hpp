#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "core/pool/request.hpp"

namespace ortmulti {

/// The requests that wait in a pool: those for any device are here, those for one device in its group's queue, which
/// has to be given. Its users hold the pool's mutex.
class WaitingRequests {
 public:
  /// The requests for any device.
  const RequestQueue& for_any() const noexcept { return for_any_; }
  RequestQueue& for_any() noexcept { return for_any_; }
  /// In all queues.
  std::size_t size() const noexcept { return size_; }

  /// The first time that a request waits gives it its place in the order.
  void insert(RequestQueue& queue, const std::shared_ptr<Request>& request);
  std::shared_ptr<Request> take(RequestQueue& queue, Request& request);
  /// The request of a lower priority whose turn it is on a device with this queue; null: the highest one's. While
  /// several priorities wait, each below the highest has a turn once in a while.
  Request* turn_of_lower(const RequestQueue& of_device);

 private:
  RequestQueue for_any_;
  std::size_t size_ = 0;
  std::size_t prioritized_ = 0;  // of these, with a priority
  std::uint64_t last_number_ = 0;
  std::size_t since_lower_ = 0;  // how many began of the highest priority, while others waited
  int last_lower_ = 0;           // the priority that last had its turn then
};

}  // namespace ortmulti
