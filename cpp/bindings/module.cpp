#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include "bindings/registrations.hpp"
#include "core/policy/numbers.hpp"

#ifdef ORTMULTI_CHECK_LOCKS
namespace ortmulti::bindings {
void check_locks();  // check_locks.cpp's
}
#endif

PYBIND11_MODULE(_core, module, pybind11::mod_gil_not_used()) {
  module.doc() = "The compiled core of ortmulti; its public face is the package around it.";
  module.attr("__version__") = ORTMULTI_VERSION;
  ortmulti::AnyNumber::check_overrides();
  using namespace ortmulti::bindings;  // NOLINT(google-build-using-namespace): many names, in one function
  // Else the first array to come has pybind11 release the GIL for it, and a daemon thread in which that is while the
  // interpreter ends would abort the process (gil.hpp).
  pybind11::detail::npy_api::get();
  register_errors(module);
  register_library(module);
  register_device(module);
  register_plugins(module);
  register_source(module);
  register_options(module);
  register_session(module);
  register_creation(module);
  register_index(module);
  register_weights(module);
  register_value(module);
  register_binding(module);
  register_tokens(module);
  register_pool(module);        // after register_tokens, whose class its signatures have
  register_repository(module);  // after register_pool, whose class its signatures have
  register_async(module);
#ifdef ORTMULTI_HAS_SERVE
  register_serve(module);
#endif
#ifdef ORTMULTI_CHECK_LOCKS
  check_locks();
#endif
}
