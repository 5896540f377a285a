#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

#include "core/base/timeline.hpp"
#include "core/ort/session.hpp"
#include "core/pool/cpu_runner.hpp"
#include "core/pool/pool.hpp"
#include "core/pool/request.hpp"
#include "core/pool/runner.hpp"
#include "core/pool/shape_graphs.hpp"
#include "core/pool/sleep.hpp"
#include "core/weights/store.hpp"

namespace ortmulti {

/// Requests under way on the CPU at most, where runs side by side have one thread each. More of them than cores get a
/// larger part of a machine that others use, too.
std::size_t max_in_flight_on_cpu();

/// How a session serves a pool's requests.
struct Serving {
  /// Requests under way on a GPU; 0: measurements choose the number. On the CPU it is one, or 0 with
  /// `one_thread_wanted`.
  int in_flight = 1;
  /// Has a session made whose runs have one thread each; empty: there is none.
  CpuSessions::Wanted one_thread_wanted;
  /// Has sessions made for CUDA graphs of shapes that come again; empty: there are no graphs.
  ShapeGraphs::Wanted graph_wanted;
  ShapeGraphs::Rule graph_rule;
};

/// Makes the sleeper of the pool's sessions on a device, for a level that keeps the sessions. Throws Error with
/// ErrorKind::not_implemented unless they share weights in memory that can be given back. If there are no sessions yet,
/// the sleep throws that instead, or ErrorKind::closed if there are none then.
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
