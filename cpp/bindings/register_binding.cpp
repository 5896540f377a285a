#include <pybind11/stl.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bindings/gil.hpp"
#include "bindings/python_value.hpp"
#include "bindings/registrations.hpp"
#include "bindings/run_options.hpp"
#include "bindings/text.hpp"
#include "core/ort/io_binding.hpp"

namespace ortmulti::bindings {
namespace {

// Returns the values in the form in which Python may free them.
Values for_python(Values values) {
  for (auto& value : values) {
    value = freed_without_gil(std::move(value));
  }
  return values;
}

Values run_with_values(Session& self, const std::vector<std::string>& output_names,
                       const std::vector<std::string>& input_names, const Values& inputs,
                       const py::object& run_options) {
  const auto options = to_run_options(run_options);
  const ReleaseGil nogil;
  return for_python(ortmulti::run_with_values(self, *options, input_names, inputs, output_names));
}

void run(IoBinding& self, const std::shared_ptr<Session>& session, const py::object& run_options) {
  if (self.session() != session) {
    throw Error(ErrorKind::invalid_argument, "an IOBinding runs with the session that created it, and no other");
  }
  const auto options = to_run_options(run_options);
  const ReleaseGil nogil;
  self.run(*options);
}

}  // namespace

void register_binding(py::module_& module) {
  module.def("run_with_values", &run_with_values, py::arg("session"), py::arg("output_names"), py::arg("input_names"),
             py::arg("inputs"), py::arg("run_options"));

  module.def(
      "allocate_in",
      [](Session& self, const std::vector<std::int64_t>& shape, int type, const Device& device) {
        return freed_without_gil(allocate_in(self, to_element_type(type), shape, device));
      },
      py::arg("session"), py::arg("shape"), py::arg("element_type"), py::arg("device"), Nogil());

  // All is done without the GIL, also the freeing: it waits for the binding's lock, and who has that may need the GIL
  // to give up Python's objects.
  py::class_<IoBinding, std::shared_ptr<IoBinding>>(module, "IoBinding")
      .def(py::init([](const std::shared_ptr<Session>& session) {
             const ReleaseGil nogil;
             return freed_without_gil(std::make_shared<IoBinding>(session));
           }),
           py::arg("session"))
      .def("bind_input", &IoBinding::bind_input, py::arg("name"), py::arg("value"), Nogil())
      .def("bind_output", py::overload_cast<const std::string&, std::shared_ptr<const Value>>(&IoBinding::bind_output),
           py::arg("name"), py::arg("value"), Nogil())
      .def("bind_output_to_device", py::overload_cast<const std::string&, const Device&>(&IoBinding::bind_output),
           py::arg("name"), py::arg("device"), Nogil())
      .def("clear_inputs", &IoBinding::clear_inputs, Nogil())
      .def("clear_outputs", &IoBinding::clear_outputs, Nogil())
      .def("synchronize", &IoBinding::synchronize, py::arg("inputs"), Nogil())
      .def("run", &run, py::arg("session"), py::arg("run_options"))
      .def("outputs", [](IoBinding& self) { return for_python(self.outputs()); }, Nogil());
}

}  // namespace ortmulti::bindings
