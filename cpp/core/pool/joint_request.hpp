#pragma once

#include <memory>
#include <vector>

#include "core/pool/batching.hpp"
#include "core/pool/padding.hpp"
#include "core/pool/request.hpp"
#include "core/pool/runner.hpp"

namespace ortmulti {

/// Makes one request of several with the same key. Inputs follow each other along the axis, filled up to one length.
/// Copies of the last row fill up the rows. `sizes`: the requests', as batch_traits() says. `runner`: of the run, which
/// may have memory for the inputs.
std::shared_ptr<Request> join(const Requests& requests, const std::vector<JointSize>& sizes, const Batching& batching,
                              Runner* runner = nullptr);

/// Gives each request a copy of its part of the joint request's outputs, so that a kept answer keeps no memory of
/// others. Requests with `takes_rows` get small outputs as rows instead. Throws Error with ErrorKind::invalid_argument
/// for an output that has not the inputs' size along the axis.
void split(Request& joint, const Requests& requests, const std::vector<JointSize>& sizes, const Batching& batching);

}  // namespace ortmulti
