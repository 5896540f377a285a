#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

#include "core/base/timeline.hpp"
#include "core/ort/session.hpp"
#include "core/pool/graphs_beside.hpp"
#include "core/pool/pool.hpp"
#include "core/pool/request.hpp"
#include "core/pool/runner.hpp"
#include "core/pool/sleep.hpp"
#include "core/weights/store.hpp"

namespace ortmulti {

/// Requests under way on a GPU where measurement says how many. Three keep it busy where runs take longer than their
/// launches. Twelve answered as many requests of BERT-base a second as any larger number, on an H100 with 16 cores
/// (gpu-feeding-bert-base-1.31.1-h100 in benchmarks/results/measurements.json).
constexpr std::size_t at_first_in_flight = 3;
constexpr std::size_t most_in_flight = 12;

/// How a session serves a pool's requests. On the CPU it takes one at a time.
struct Serving {
  /// Requests under way on a GPU; 0: as many as measurement says.
  int in_flight = 1;
  /// Has sessions made for the CUDA graphs of shapes that come again; empty: none are made.
  GraphsBeside::Wanted graph_wanted;
  GraphsBeside::Rule graph_rule;
};

/// Has the pool's sessions on a device sleep and wake at a level that keeps them. Throws Error with
/// ErrorKind::not_implemented where they do not share weights in memory that can be given back. Without sessions, as
/// while the device wakes, it is the sleep that throws; with ErrorKind::closed where there are none then.
std::shared_ptr<DeviceSleep> make_sleeper(const std::weak_ptr<Pool>& pool, const Device& device, SleepLevel level,
                                          HostCopy copy, const std::shared_ptr<Timeline>& timeline);

/// What runners run before they take requests.
struct WarmUp {
  std::function<Requests()> make;                ///< The requests of one runner.
  int runs = 0;                                  ///< Of each of them.
  std::shared_ptr<Timeline> timeline = nullptr;  ///< Gets a span of each runner.
};

/// All runners run at the same time, as far as the system has threads. Throws the first runner's error when all have
/// ended.
void warm_up(const std::vector<std::shared_ptr<Runner>>& runners, const WarmUp& first);

/// Adds the session to the pool; those of its runners that run at first are warmed up before.
void add_session(Pool& pool, const std::shared_ptr<Session>& session, const Serving& serving, const WarmUp& first);

}  // namespace ortmulti
