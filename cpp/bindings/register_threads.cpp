#include <pybind11/stl.h>

#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings/gil.hpp"
#include "bindings/registrations.hpp"
#include "core/ort/session.hpp"
#include "core/ort/thread_group.hpp"

namespace py = pybind11;

namespace ortmulti::bindings {
namespace {

// (name prefix, owner, CPUs, created, joined)
using CountsTuple = std::tuple<std::string, std::string, std::vector<int>, int, int>;

CountsTuple to_tuple(const ThreadCounts& counts) {
  return {counts.name_prefix, counts.owner, counts.cpus, counts.created, counts.joined};
}

std::vector<CountsTuple> counts_of_all() {
  std::vector<CountsTuple> result;
  for (const ThreadCounts& counts : thread_counts()) {
    result.push_back(to_tuple(counts));
  }
  return result;
}

}  // namespace

void register_threads(py::module_& module) {
  // Plain values: ortmulti.Threads checks them.
  py::class_<ThreadSettings>(module, "ThreadSettings")
      .def(py::init<std::string, std::optional<int>, bool, std::vector<int>>(), py::arg("name_prefix"),
           py::arg("numa_node"), py::arg("near_device"), py::arg("cpus"))
      .def_readonly("name_prefix", &ThreadSettings::name_prefix)
      .def_readonly("numa_node", &ThreadSettings::numa_node)
      .def_readonly("near_device", &ThreadSettings::near_device)
      .def_readonly("cpus", &ThreadSettings::cpus);
  module.def("thread_counts", &counts_of_all, py::call_guard<ReleaseGil>());
  module.def(
      "thread_counts_of",
      [](const Session& session) -> std::optional<CountsTuple> {
        const auto& threads = session.threads();
        return threads ? std::optional(to_tuple(threads->counts())) : std::nullopt;
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
