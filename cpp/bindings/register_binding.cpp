#include <pybind11/stl.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "bindings/gil.hpp"
#include "bindings/python_session.hpp"
#include "bindings/python_value.hpp"
#include "bindings/registrations.hpp"
#include "bindings/run_options.hpp"
#include "core/ort/io_binding.hpp"

namespace py = pybind11;

namespace ortmulti::bindings {
namespace {

py::list to_list(Values values) {
  py::list list(values.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    list[i] = PythonValue(std::move(values[i]));
  }
  return list;
}

py::list run_with_values(const PythonSession& self, const std::vector<std::string>& output_names,
                         const std::vector<std::string>& input_names, const py::list& inputs,
                         const py::object& run_options) {
  const auto options = to_run_options(run_options);
  Values values;
  for (const py::handle input : inputs) {
    values.push_back(input.cast<const PythonValue&>().value);
  }
  Values outputs;
  {
    const ReleaseGil nogil;
    outputs = ortmulti::run_with_values(*self.session, *options, input_names, values, output_names);
  }
  return to_list(std::move(outputs));
}

PythonValue allocate_in(const PythonSession& self, const std::vector<std::int64_t>& shape, int type,
                        const std::string& device) {
  const Device on = parse_device(device);
  const ReleaseGil nogil;
  return PythonValue(ortmulti::allocate_in(*self.session, to_element_type(type), shape, on));
}

// A binding as Python holds it. All that it does is done without the GIL: it waits for its lock, and who has that may
// need the GIL to give up Python's objects.
class PythonBinding {
 public:
  explicit PythonBinding(const PythonSession& session) {
    const ReleaseGil nogil;
    binding_ = std::make_unique<IoBinding>(session.session);
  }
  PythonBinding(const PythonBinding&) = delete;
  PythonBinding& operator=(const PythonBinding&) = delete;
  PythonBinding(PythonBinding&&) = delete;
  PythonBinding& operator=(PythonBinding&&) = delete;
  ~PythonBinding() {
    const ReleaseGil nogil;
    binding_.reset();
  }

  IoBinding& get() const noexcept { return *binding_; }

 private:
  std::unique_ptr<IoBinding> binding_;
};

void run(const PythonBinding& self, const PythonSession& session, const py::object& run_options) {
  if (self.get().session() != session.session) {
    throw Error(ErrorKind::invalid_argument, "an IOBinding runs with the session that created it, and no other");
  }
  const auto options = to_run_options(run_options);
  const ReleaseGil nogil;
  self.get().run(*options);
}

}  // namespace

void register_binding(py::module_& module) {
  module.def("run_with_values", &run_with_values, py::arg("session"), py::arg("output_names"), py::arg("input_names"),
             py::arg("inputs"), py::arg("run_options"));

  module.def("allocate_in", &allocate_in, py::arg("session"), py::arg("shape"), py::arg("element_type"),
             py::arg("device"));

  using Nogil = py::call_guard<ReleaseGil>;
  py::class_<PythonBinding>(module, "IoBinding")
      .def(py::init<const PythonSession&>(), py::arg("session"))
      .def(
          "bind_input",
          [](const PythonBinding& self, const std::string& name, const PythonValue& value) {
            self.get().bind_input(name, value.value);
          },
          py::arg("name"), py::arg("value"), Nogil())
      .def(
          "bind_output",
          [](const PythonBinding& self, const std::string& name, const PythonValue& value) {
            self.get().bind_output(name, value.value);
          },
          py::arg("name"), py::arg("value"), Nogil())
      .def(
          "bind_output_to_device",
          [](const PythonBinding& self, const std::string& name, const std::string& device) {
            self.get().bind_output(name, parse_device(device));
          },
          py::arg("name"), py::arg("device"), Nogil())
      .def(
          "clear_inputs", [](const PythonBinding& self) { self.get().clear_inputs(); }, Nogil())
      .def(
          "clear_outputs", [](const PythonBinding& self) { self.get().clear_outputs(); }, Nogil())
      .def(
          "synchronize_inputs", [](const PythonBinding& self) { self.get().synchronize_inputs(); }, Nogil())
      .def(
          "synchronize_outputs", [](const PythonBinding& self) { self.get().synchronize_outputs(); }, Nogil())
      .def("run", &run, py::arg("session"), py::arg("run_options"))
      .def("outputs", [](const PythonBinding& self) {
        Values values;
        {
          const ReleaseGil nogil;
          values = self.get().outputs();
        }
        return to_list(std::move(values));
      });
}

}  // namespace ortmulti::bindings
