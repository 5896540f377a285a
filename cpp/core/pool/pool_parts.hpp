#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "core/base/error.hpp"
#include "core/pool/in_flight.hpp"
#include "core/pool/pool.hpp"

namespace ortmulti {

// Of a failed run, while its requests are tried on another device: the failure counts against the first one if all of
// them succeed there. Who holds it is undecided.
struct Suspicion {
  Device device;
  bool probe = false;    // the device was suspended
  bool cleared = false;  // the requests are to blame, or nobody knows
  std::string error;
};

// The sessions of one device.
struct Pool::Group {
  Device device;
  Queue waiting;  // for this device alone
  std::vector<Worker*> workers;
  std::size_t busy = 0;
  std::thread::id caller;             // of a GPU's device: the one whose own runs are done by itself
  std::optional<InFlight> in_flight;  // of the workers; none: all of them may be busy
  std::size_t expected = 0;           // sessions on their way
  bool provisional = false;           // asked for before it was known whether there will be such a device
  bool removed = false;
  bool never_came = false;  // it is `broken` since none of its sessions came
  std::string broken;
  std::string suspended;                             // why; empty: it is not
  std::size_t failures = 0;                          // in a row, that other devices did not share
  std::vector<std::weak_ptr<Suspicion>> suspicions;  // undecided
  Clock::duration pause{};                           // of a suspended device, from one probe to the next
  Clock::time_point next_probe;
  // A device that falls asleep waits for its runs, which can be taken back; one that gives back cannot.
  enum class Rest { awake, falling_asleep, giving_back, asleep, waking } rest = Rest::awake;
  std::shared_ptr<DeviceSleep> sleeper;  // while it is not awake
  std::exception_ptr wake_error;         // of the last wake, if it failed
  Clock::time_point woken;               // when a wake was asked for
  bool asked_awake = false;              // by wake(), for the wake that is under way
  std::uint64_t sleeps = 0;
  std::uint64_t wakes = 0;
  LatencyHistogram wake;
  std::uint64_t done = 0;
  std::uint64_t failed = 0;
  std::uint64_t cancelled = 0;
  std::uint64_t retried = 0;
  std::uint64_t runs = 0;
  LatencyHistogram queue;
  LatencyHistogram copy;
  LatencyHistogram run;
  LatencyHistogram total;
  SizeHistogram batch_size;
};

struct Pool::Worker {
  Group* group = nullptr;
  std::shared_ptr<Runner> runner;
  const void* session = nullptr;  // the runner's, to be counted
  bool busy = false;
  bool stopping = false;
  bool wakes_device = false;
  bool given = false;       // something to run, which may have been taken back
  bool forming = false;     // its batch may grow
  Requests batch;           // what it has to run
  std::size_t batched = 0;  // the size of that
  std::size_t enough = 0;   // the size with which a forming batch begins at once
  bool at_once = false;     // it got its requests as its last run ended
  Clock::time_point wakes;  // by itself, while it is idle; far in the past: it does not
  Clock::time_point freed;  // when that run had ended
  Grace grace;
  Request* in_run = nullptr;  // what the runner has
  std::string why_broken;     // since the last run
  bool probing = false;       // it got its requests while the device was suspended
  bool away = false;          // its session takes nothing now
  bool lost = false;          // its session was lost under the last run,
  bool begun = false;         // which had begun
  std::condition_variable wake;
  std::thread thread;
};

inline std::exception_ptr make_error(ErrorKind kind, const std::string& message) {
  return std::make_exception_ptr(Error(kind, message));
}

}  // namespace ortmulti
