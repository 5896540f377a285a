#include <pybind11/stl.h>

#include "bindings/registrations.hpp"
#include "bindings/run_options.hpp"
#include "core/session_options.hpp"

namespace py = pybind11;

namespace ortmulti::bindings {

void register_options(py::module_& module) {
  // Plain values: ortmulti.SessionOptions checks them and fills this in.
  py::class_<SessionOptions>(module, "SessionOptions")
      .def(py::init<>())
      .def("copy", [](const SessionOptions& options) { return options; })
      .def_readwrite("intra_op_num_threads", &SessionOptions::intra_op_num_threads)
      .def_readwrite("inter_op_num_threads", &SessionOptions::inter_op_num_threads)
      .def_readwrite("graph_optimization_level", &SessionOptions::graph_optimization_level)
      .def_readwrite("execution_mode", &SessionOptions::execution_mode)
      .def_readwrite("log_severity_level", &SessionOptions::log_severity_level)
      .def_readwrite("log_verbosity_level", &SessionOptions::log_verbosity_level)
      .def_readwrite("enable_cpu_mem_arena", &SessionOptions::enable_cpu_mem_arena)
      .def_readwrite("enable_mem_pattern", &SessionOptions::enable_mem_pattern)
      .def_readwrite("enable_profiling", &SessionOptions::enable_profiling)
      .def_readwrite("use_deterministic_compute", &SessionOptions::use_deterministic_compute)
      .def_readwrite("use_per_session_threads", &SessionOptions::use_per_session_threads)
      .def_readwrite("logid", &SessionOptions::logid)
      .def_readwrite("optimized_model_filepath", &SessionOptions::optimized_model_filepath)
      .def_readwrite("profile_file_prefix", &SessionOptions::profile_file_prefix)
      .def_readwrite("config_entries", &SessionOptions::config_entries)
      .def_readwrite("free_dimensions_by_name", &SessionOptions::free_dimensions_by_name)
      .def_readwrite("free_dimensions_by_denotation", &SessionOptions::free_dimensions_by_denotation);

  py::class_<RunOptions>(module, "RunOptions")
      .def(py::init<>())
      .def_property("log_severity_level", &RunOptions::log_severity_level, &RunOptions::set_log_severity_level)
      .def_property("log_verbosity_level", &RunOptions::log_verbosity_level, &RunOptions::set_log_verbosity_level)
      .def_property("logid", &RunOptions::logid, &RunOptions::set_logid)
      .def_property("terminate", &RunOptions::terminate, &RunOptions::set_terminate)
      .def("add_run_config_entry", &RunOptions::add_config_entry)
      .def("get_run_config_entry", &RunOptions::config_entry)
      .def("add_active_adapter", &RunOptions::add_active_adapter);
}

}  // namespace ortmulti::bindings
