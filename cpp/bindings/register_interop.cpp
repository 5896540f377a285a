#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bindings/dlpack.hpp"
#include "bindings/gil.hpp"
#include "bindings/registrations.hpp"
#include "bindings/signals.hpp"
#include "bindings/text.hpp"
#include "core/base/error.hpp"
#include "core/cuda/startup.hpp"
#include "core/weights/loader.hpp"

namespace ortmulti::bindings {
namespace {

dlpack::DataType element_type(const Weight& weight, bool bool_is_uint8) {
  // TensorProto.DataType has the same numbers.
  const auto type = dlpack::type_of(static_cast<ONNXTensorElementDataType>(weight.data_type), bool_is_uint8);
  if (!type) {
    throw Error(ErrorKind::not_implemented, "weight '" + weight.name + "' has the type " +
                                                std::to_string(weight.data_type) +
                                                ", which onnxruntime does not take by DLPack");
  }
  return *type;
}

// Not the store itself: of a class that knows its owner pybind11 would not keep the owner that is given here.
struct DeviceWeights {
  std::shared_ptr<const CudaWeightStore> store;

  int device() const { return store->device().index; }

  py::object dlpack(std::size_t index, bool bool_is_uint8) const {
    const std::vector<Weight>& weights = store->plan().list.weights;
    if (index >= weights.size()) {
      throw py::index_error("weight " + std::to_string(index) + " of " + std::to_string(weights.size()));
    }
    const Weight& weight = weights[index];
    const dlpack::DataType type = element_type(weight, bool_is_uint8);
    return dlpack::make_capsule(to_pointer(store->address(index)), store->device(), type, weight.shape, store);
  }
};

std::vector<DeviceWeights> load_weights(const SharedWeights& weights, const std::vector<int>& devices) {
  const auto load = without_gil(
      [&] { return freed_without_gil(std::make_shared<WeightLoad>(CudaStartup::instance(), weights, devices)); });
  wait_until([&](auto /*until*/) { return load->wait(signal_interval); });  // the threads touch no Python object
  const ReleaseGil nogil;
  std::vector<DeviceWeights> result;
  for (auto& store : load->take()) {
    result.push_back({freed_without_gil(std::move(store))});
  }
  return result;
}

}  // namespace

void register_interop(py::module_& module) {
  py::class_<DeviceWeights>(module, "DeviceWeights")
      .def_property_readonly("device", &DeviceWeights::device)
      .def("dlpack", &DeviceWeights::dlpack, py::arg("index"), py::arg("bool_is_uint8"));
  module.def("load_weights", &load_weights, py::arg("weights"), py::arg("devices"));
  py::class_<Offered>(module, "OfferedWeights")
      .def_property_readonly("model", [](const Offered& offered) { return Text(offered.model); })
      .def_property_readonly("uuid", [](const Offered& offered) { return Text(offered.device); })
      .def_readonly("bytes", &Offered::bytes)
      .def_readonly("process", &Offered::process);
  module.def("offered_weights", [] { return without_gil(all_offers); });
}

}  // namespace ortmulti::bindings
