#pragma once

#include <set>
#include <string>

namespace ortmulti {

/// Whether ONNX Runtime's CUDA provider may read weights of a model with these operators ("MatMul",
/// "com.microsoft:FusedMatMul") while a session is created, as kernels do that pack weights or copy them to the host.
/// False only where there are operators and each is known not to.
bool reads_weights_when_created(const std::set<std::string>& operators);

/// The first of the operators whose kernels on the CPU keep something from run to run, or may do so, as those of random
/// numbers and of unknown domains; empty if there is none. Sessions of such a model are not interchangeable.
std::string find_stateful_operator(const std::set<std::string>& operators);

}  // namespace ortmulti
