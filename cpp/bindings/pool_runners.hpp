#pragma once

#include <pybind11/pybind11.h>

#include <cstddef>
#include <memory>
#include <vector>

#include "core/base/timeline.hpp"
#include "core/ort/session.hpp"
#include "core/pool/runner.hpp"

namespace ortmulti::bindings {

/// What runs a pool's requests with a session: one on the CPU, `in_flight` on a GPU. `max_graphs`: of how many shapes
/// each keeps CUDA graphs; 0: none. `runs_at_once`: of those in flight. Needs no GIL. Throws Error.
std::vector<std::shared_ptr<Runner>> make_runners(const std::shared_ptr<Session>& session, int in_flight,
                                                  std::size_t max_graphs, int runs_at_once);

/// Has every runner run each feed so often, all runners at the same time; each adds a span to the timeline.
/// `run_options` may end the runs. Throws the first one's error when all have ended. Needs the GIL, and releases it.
void warm_up(const std::shared_ptr<Session>& session, const std::vector<std::shared_ptr<Runner>>& runners,
             const pybind11::list& feeds, int runs, const std::shared_ptr<Timeline>& timeline,
             const pybind11::object& run_options = pybind11::none());

}  // namespace ortmulti::bindings
