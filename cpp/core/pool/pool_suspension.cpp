// Suspension of devices whose runs fail while the same requests succeed on other devices.

#include <algorithm>
#include <optional>
#include <utility>

#include "core/ort/library.hpp"
#include "core/pool/pool_parts.hpp"

namespace ortmulti {
namespace {

constexpr std::size_t most_failures = 5;  // in a row
constexpr std::chrono::milliseconds first_pause{100};
constexpr std::chrono::seconds longest_pause{10};

// The message of an error that may be the device's; none for errors that the request alone causes.
std::optional<std::string> device_failure(const std::exception_ptr& exception) {
  try {
    std::rethrow_exception(exception);
  } catch (const Error& error) {
    switch (error.kind()) {
      case ErrorKind::fail:
      case ErrorKind::engine_error:
      case ErrorKind::runtime_exception:
      case ErrorKind::ep_fail:
      case ErrorKind::device_reset:
      case ErrorKind::device:
      case ErrorKind::out_of_memory:
        return error.what();
      default:
        return std::nullopt;
    }
  } catch (...) {
    return std::nullopt;
  }
}

}  // namespace

bool Pool::dispatches(const Group& group) {
  return usable(group) && !group.workers.empty() && group.suspended.empty() && group.rest == Group::Rest::awake;
}

bool Pool::others_dispatch(const Group& group) const {
  return std::any_of(groups_.begin(), groups_.end(),
                     [&group](const auto& other) { return other.get() != &group && dispatches(*other); });
}

bool Pool::held_back(Group& group) const {
  auto& undecided = group.suspicions;
  undecided.erase(std::remove_if(undecided.begin(), undecided.end(), [](const auto& one) { return one.expired(); }),
                  undecided.end());
  return group.failures + undecided.size() >= most_failures && others_dispatch(group);
}

bool Pool::takes(Group& group, const Request& request) const {
  if (request.device) {
    return true;
  }
  if (!group.suspended.empty()) {
    return false;
  }
  if (request.suspicion_ && request.suspicion_->device == group.device) {
    return !others_dispatch(group);
  }
  return request.retried_ || !held_back(group);
}

bool Pool::probe_due(const Group& group, const Request& request) const {
  return !group.suspended.empty() && group.busy == 0 && may_try_elsewhere(request) &&
         options_.now() >= group.next_probe;
}

bool Pool::may_move(const Request& request) {
  return !request.device && !request.retried_ && !request.unwanted_ && !request.expired_;
}

bool Pool::may_try_elsewhere(const Request& request) {
  const bool callers_options = request.run_options != nullptr && !request.own_run_options;
  return may_move(request) && !callers_options;
}

bool Pool::movable(const Requests& batch) {
  return std::all_of(batch.begin(), batch.end(), [](const auto& request) {
    return may_try_elsewhere(*request) || request->unwanted_ || request->expired_;
  });
}

std::shared_ptr<Suspicion> Pool::suspect(Worker& worker, const std::exception_ptr& error) {
  Group& group = *worker.group;
  if (!group.broken.empty() || !worker.why_broken.empty() || !others_dispatch(group)) {
    return nullptr;
  }
  std::optional<std::string> text = device_failure(error);
  if (!text) {
    return nullptr;
  }
  auto suspicion = std::make_shared<Suspicion>(Suspicion{group.device, worker.probing, false, std::move(*text)});
  group.suspicions.push_back(suspicion);
  return suspicion;
}

void Pool::hold(Group& group, Request& request, const std::shared_ptr<Suspicion>& suspicion) {
  ++group.retried;
  request.retried_ = true;
  request.suspicion_ = suspicion;
}

void Pool::decide(const Suspicion& suspicion) {
  Group& group = group_of(suspicion.device);
  if (!suspicion.cleared && usable(group)) {
    if (group.suspended.empty()) {
      if (++group.failures >= most_failures && others_dispatch(group)) {
        suspend(group, suspicion.error);
      }
    } else if (suspicion.probe) {
      group.pause = std::min<Clock::duration>(2 * group.pause, longest_pause);
      group.next_probe = options_.now() + group.pause;
    }
  }
  refresh();
}

void Pool::suspend(Group& group, const std::string& error) {
  constexpr int warning = 2;
  group.suspended = std::to_string(group.failures) +
                    " runs in a row failed here and succeeded on other devices; the last error: " + error;
  group.failures = 0;
  group.pause = first_pause;
  group.next_probe = options_.now() + first_pause;
  onnxruntime_log().push({warning, "ortmulti", "", "",
                          to_string(group.device) + " gets no requests until one succeeds there: " + group.suspended});
}

void Pool::note_success(Worker& worker) {
  Group& group = *worker.group;
  group.failures = 0;
  if (worker.probing && !group.suspended.empty()) {
    constexpr int info = 1;
    group.suspended.clear();
    onnxruntime_log().push({info, "ortmulti", "", "", to_string(group.device) + " gets requests again"});
    give_waiting(group);
  }
}

void Pool::refresh() {
  if (std::none_of(groups_.begin(), groups_.end(), [](const auto& group) { return dispatches(*group); })) {
    for (const auto& group : groups_) {
      group->suspended.clear();
    }
  }
  for (const auto& group : groups_) {
    give_waiting(*group);
  }
}

void Pool::give_waiting(Group& group) {
  if (!usable(group)) {
    return;
  }
  for (Worker* worker : group.workers) {
    if (worker->busy || worker->away) {
      continue;
    }
    if (occupied(group)) {
      return;
    }
    const auto next = next_for(group);
    if (!next) {
      return;
    }
    give(*worker, next);
  }
}

}  // namespace ortmulti
