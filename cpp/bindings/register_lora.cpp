#include <pybind11/numpy.h>

#include <memory>
#include <string>

#include "bindings/gil.hpp"
#include "bindings/lora_adapter.hpp"
#include "bindings/python_value.hpp"
#include "bindings/registrations.hpp"
#include "bindings/text.hpp"
#include "core/base/error.hpp"

namespace py = pybind11;

namespace ortmulti::bindings {
namespace {

void load(LoraAdapter& self, const py::str& file) {
  const std::string path = from_path(file);
  std::shared_ptr<const Ort::LoraAdapter> loaded;
  {
    const ReleaseGil nogil;
    try {
      loaded = std::make_shared<const Ort::LoraAdapter>(Ort::LoraAdapter::CreateLoraAdapter(path, nullptr));
    } catch (const Ort::Exception& exception) {
      throw from_onnxruntime(exception, "loading the adapter '" + path + "'");
    }
  }
  std::atomic_store(&self.loaded, std::move(loaded));
}

// A tensor's bytes as they are, of whichever type.
py::array bytes_of(const PythonValue& value) {
  py::array_t<std::uint8_t> bytes(static_cast<py::ssize_t>(value.value->bytes()));
  void* target = bytes.mutable_data();
  const ReleaseGil nogil;
  value.value->copy_to_host(target);
  return std::move(bytes);
}

}  // namespace

void register_lora(py::module_& module) {
  py::class_<LoraAdapter>(module, "LoraAdapter").def(py::init<>()).def("_load", &load, py::arg("path"));
  module.def("bytes_of", &bytes_of, py::arg("value"));
}

}  // namespace ortmulti::bindings
