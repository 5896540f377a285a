#pragma once

#include <pybind11/pybind11.h>

#include "core/pool/pool.hpp"

namespace ortmulti::bindings {

/// What `ortmulti.PoolStats` is made from.
pybind11::dict to_dict(const PoolStats& stats);

/// (state, why it failed or broke) of each device.
pybind11::dict to_states(const PoolStats& stats);

}  // namespace ortmulti::bindings
