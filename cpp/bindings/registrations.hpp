#pragma once

#include <pybind11/pybind11.h>

namespace ortmulti::bindings {

void register_errors(pybind11::module_& module);
void register_library(pybind11::module_& module);
void register_device(pybind11::module_& module);
void register_index(pybind11::module_& module);
void register_options(pybind11::module_& module);
void register_plugins(pybind11::module_& module);
void register_tokens(pybind11::module_& module);
void register_pool(pybind11::module_& module);
void register_session(pybind11::module_& module);
void register_creation(pybind11::module_& module);
void register_source(pybind11::module_& module);
void register_weights(pybind11::module_& module);
void register_value(pybind11::module_& module);
void register_binding(pybind11::module_& module);
void register_repository(pybind11::module_& module);
void register_async(pybind11::module_& module);
void register_serve(pybind11::module_& module);
void register_vectors(pybind11::module_& module);

}  // namespace ortmulti::bindings
