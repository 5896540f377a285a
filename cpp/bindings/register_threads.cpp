#include <pybind11/stl.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bindings/gil.hpp"
#include "bindings/registrations.hpp"
#include "core/ort/session.hpp"
#include "core/ort/thread_group.hpp"

namespace py = pybind11;

namespace ortmulti::bindings {

void register_threads(py::module_& module) {
  // Plain values: ortmulti.Threads checks them.
  py::class_<ThreadSettings>(module, "ThreadSettings")
      .def(py::init<std::string, std::optional<int>, bool, std::vector<int>>(), py::arg("name_prefix"),
           py::arg("numa_node"), py::arg("near_device"), py::arg("cpus"))
      .def_readonly("name_prefix", &ThreadSettings::name_prefix)
      .def_readonly("numa_node", &ThreadSettings::numa_node)
      .def_readonly("near_device", &ThreadSettings::near_device)
      .def_readonly("cpus", &ThreadSettings::cpus);
  py::class_<ThreadCounts>(module, "ThreadCounts")
      .def_readonly("name_prefix", &ThreadCounts::name_prefix)
      .def_readonly("owner", &ThreadCounts::owner)
      .def_readonly("cpus", &ThreadCounts::cpus)
      .def_readonly("created", &ThreadCounts::created)
      .def_readonly("joined", &ThreadCounts::joined);
  module.def("thread_counts", &thread_counts, py::call_guard<ReleaseGil>());
  module.def(
      "thread_counts_of",
      [](const Session& session) {
        return session.threads() ? std::optional(session.threads()->counts()) : std::nullopt;
      },
      py::arg("session"), py::call_guard<ReleaseGil>());
  module.def(
      "set_global_thread_pools",
      [](int intra_op_num_threads, int inter_op_num_threads, std::optional<bool> allow_spinning,
         std::string intra_op_affinity, bool denormal_as_zero, std::optional<ThreadSettings> threads) {
        OnnxRuntime::set_global_thread_pools({intra_op_num_threads, inter_op_num_threads, allow_spinning,
                                              std::move(intra_op_affinity), denormal_as_zero, std::move(threads)});
      },
      py::arg("intra_op_num_threads"), py::arg("inter_op_num_threads"), py::arg("allow_spinning"),
      py::arg("intra_op_affinity"), py::arg("denormal_as_zero"), py::arg("threads"), py::call_guard<ReleaseGil>());
}

}  // namespace ortmulti::bindings
