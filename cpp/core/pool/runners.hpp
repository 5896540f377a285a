#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <vector>

#include "core/base/timeline.hpp"
#include "core/ort/session.hpp"
#include "core/pool/graphs_beside.hpp"
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

/// What runs a pool's requests with a session.
struct Runners {
  std::vector<std::shared_ptr<Runner>> all;
  /// How many of them are ready, and run at first: as Pool::add() takes it.
  std::optional<std::size_t> at_first;
};

/// One runner on the CPU, `in_flight` of them on a GPU. Throws Error.
Runners make_runners(const std::shared_ptr<Session>& session, const Serving& serving);

/// Has one device's sessions sleep and wake at a level that keeps them. Throws Error with ErrorKind::not_implemented
/// where the sessions do not share weights in memory that can be given back, with ErrorKind::closed where there is no
/// session.
std::shared_ptr<DeviceSleep> make_sleeper(SleepLevel level, const std::vector<std::shared_ptr<Session>>& sessions,
                                          HostCopy copy, const std::shared_ptr<Timeline>& timeline);

/// What a runner runs before it takes requests.
struct WarmUp {
  std::shared_ptr<Runner> runner;
  std::vector<std::shared_ptr<Request>> requests;
};

/// Each runner runs each of its requests `runs` times, all runners at the same time, as far as the system has threads.
/// Each adds a span to the timeline, if there is one. Throws the first runner's error when all have ended.
void warm_up(const std::vector<WarmUp>& all, int runs, Timeline* timeline);

}  // namespace ortmulti
