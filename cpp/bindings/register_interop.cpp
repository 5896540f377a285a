#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "bindings/dlpack.hpp"
#include "bindings/gil.hpp"
#include "bindings/registrations.hpp"
#include "bindings/signals.hpp"
#include "core/base/error.hpp"
#include "core/create/session_factory.hpp"
#include "core/cuda/startup.hpp"
#include "core/weights/loader.hpp"
#include "core/weights/plan.hpp"

namespace py = pybind11;

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

// Whoever uses the tensor goes as far as its shape says.
void check_length(const Weight& weight, const dlpack::DataType& type) {
  std::uint64_t bits = type.bits;
  bool fits = true;
  for (const std::int64_t size : weight.shape) {
    fits = fits && size >= 0 && !__builtin_mul_overflow(bits, static_cast<std::uint64_t>(size), &bits);
  }
  if (!fits || bits / 8 + (bits % 8 == 0 ? 0 : 1) != weight.length) {
    throw Error(ErrorKind::invalid_argument, "weight '" + weight.name + "' has " + std::to_string(weight.length) +
                                                 " bytes, which is not what its shape and type take");
  }
}

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
    check_length(weight, type);
    // NOLINTNEXTLINE(performance-no-int-to-ptr): the driver's addresses are numbers
    return dlpack::make_capsule(reinterpret_cast<void*>(store->address(index)), store->device(), type, weight.shape,
                                store);
  }
};

// A load on a thread for each device. Its threads end before it does, at their next chunk if they are not done.
class Load {
 public:
  Load(const std::shared_ptr<const WeightPlan>& plan, const std::vector<int>& devices, const LoaderOptions& options,
       const std::shared_ptr<ReadAhead>& read_ahead)
      : loader_(CudaStartup::instance(), plan, devices, options, read_ahead, nullptr) {}
  ~Load() { stop(); }
  Load(const Load&) = delete;
  Load& operator=(const Load&) = delete;

  void start() {
    CudaStartup::instance().begin_contexts(loader_.devices());
    try {
      for (std::size_t i = 0; i < loader_.devices().size(); ++i) {
        threads_.emplace_back([this, i] { bring_up(i); });
      }
    } catch (const std::system_error& error) {
      throw Error(ErrorKind::runtime_exception, "cannot start a thread for each of " +
                                                    std::to_string(loader_.devices().size()) +
                                                    " devices: " + error.what());
    }
  }

  // Whether all threads are done, after `timeout` at the latest.
  bool wait(std::chrono::milliseconds timeout) {
    std::unique_lock lock(mutex_);
    return done_.wait_for(lock, timeout, [this] { return finished_ == threads_.size(); });
  }

  // The first error of any device is thrown.
  std::vector<DeviceWeights> take() {
    std::vector<DeviceWeights> stores;
    for (std::size_t i = 0; i < loader_.devices().size(); ++i) {
      loader_.wait_filled(i);
      stores.push_back({freed_without_gil(loader_.allocated(i))});
    }
    return stores;
  }

  void stop() {
    loader_.stop();
    for (std::thread& thread : threads_) {
      thread.join();
    }
    threads_.clear();
  }

 private:
  void bring_up(std::size_t index) noexcept {
    loader_.want(index);
    loader_.bring_up(index);
    const std::lock_guard lock(mutex_);
    ++finished_;
    done_.notify_all();
  }

  WeightLoader loader_;
  std::mutex mutex_;
  std::condition_variable done_;
  std::size_t finished_ = 0;
  std::vector<std::thread> threads_;
};

// The last reference to a load, given up without the GIL: its threads take time to end.
void give_up(Load* load) {
  const ReleaseGil nogil;
  delete load;  // NOLINT(cppcoreguidelines-owning-memory)
}

std::vector<DeviceWeights> load_weights(const SharedWeights& weights, const std::vector<int>& devices) {
  if (devices.empty()) {
    throw Error(ErrorKind::invalid_argument, "there is no device to load the weights to");
  }
  if (std::set<int>(devices.begin(), devices.end()).size() != devices.size()) {
    throw Error(ErrorKind::invalid_argument, "a device is named twice, and has the weights once");
  }
  std::unique_ptr<Load, void (*)(Load*)> load(nullptr, &give_up);
  {
    const ReleaseGil nogil;
    load.reset(new Load(weights.plan, devices, weights.loader, weights.read_ahead));
    load->start();
  }
  wait_until([&] { return load->wait(signal_interval); });  // the threads touch no Python object
  const ReleaseGil nogil;
  return load->take();
}

}  // namespace

void register_interop(py::module_& module) {
  py::class_<DeviceWeights>(module, "DeviceWeights")
      .def_property_readonly("device", &DeviceWeights::device)
      .def("dlpack", &DeviceWeights::dlpack, py::arg("index"), py::arg("bool_is_uint8"));
  module.def("load_weights", &load_weights, py::arg("weights"), py::arg("devices"));
}

}  // namespace ortmulti::bindings
