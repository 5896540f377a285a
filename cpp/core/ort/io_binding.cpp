#include "core/ort/io_binding.hpp"

#include <optional>
#include <utility>

#include "core/base/error.hpp"
#include "core/base/fork.hpp"
#include "core/base/text.hpp"
#include "core/cuda/device_sync_guard.hpp"
#include "core/cuda/memory.hpp"
#include "core/ort/checked.hpp"

namespace ortmulti {
namespace {

bool is_optional(const ValueInfo& declared) { return declared.type.starts_with("optional("); }

void check_type(const char* what, const ValueInfo& declared, const Value& value) {
  if (is_optional(declared)) {
    return;  // which ONNX Runtime also takes empty
  }
  if (!value.has_value()) {
    throw Error(ErrorKind::invalid_argument,
                std::string(what) + " '" + declared.name + "' is " + declared.type + "; the OrtValue is empty");
  }
  if (const std::string type = value.type(); type != declared.type) {
    throw Error(ErrorKind::invalid_type,
                std::string(what) + " '" + declared.name + "' is " + declared.type + "; the OrtValue is " + type);
  }
}

// An output that ONNX Runtime did not allocate lies in one of the values that it was given.
std::shared_ptr<const Value> with_owner(Ort::Value output, const Values& given) {
  if (output != nullptr && output.HasValue() && output.IsTensor() &&
      output.GetTensorTypeAndShapeInfo().GetElementType() != ONNX_TENSOR_ELEMENT_DATA_TYPE_STRING) {
    const void* const data = output.GetTensorRawData();
    for (const auto& value : given) {
      if (value && value->contains(data)) {
        return std::make_shared<const Value>(std::move(output), value, value->writable());
      }
    }
  }
  return std::make_shared<const Value>(std::move(output));
}

}  // namespace

void check_input(const ValueInfo& declared, const Value& value) {
  check_type("input", declared, value);
  // A model that declares no shape is not told from one that declares a scalar.
  if (!declared.is_tensor || declared.shape.empty()) {
    return;
  }
  const std::vector<std::int64_t> shape = value.shape();
  bool fits = shape.size() == declared.shape.size();
  for (std::size_t i = 0; fits && i < shape.size(); ++i) {
    fits = declared.shape[i] < 0 || declared.shape[i] == shape[i];
  }
  if (!fits) {
    const auto text = [](const std::vector<std::int64_t>& sizes) {
      return "[" + listed(sizes, [](std::int64_t size) { return size < 0 ? "any" : std::to_string(size); }) + "]";
    };
    throw Error(ErrorKind::invalid_argument, "input '" + declared.name + "' has the shape " + text(declared.shape) +
                                                 "; the OrtValue's is " + text(shape));
  }
}

Values run_with_values(Session& session, const Ort::RunOptions& options, const std::vector<std::string>& input_names,
                       const Values& inputs, const std::vector<std::string>& output_names) {
  RunInputs fed;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const ValueInfo& declared = session.input(input_names[i]);
    check_input(declared, *inputs[i]);
    fed.add(declared.name.c_str(), *inputs[i]);
  }
  session.check_complete(fed.names());
  std::vector<const char*> wanted =
      output_names.empty() ? name_pointers(session.outputs()) : std::vector<const char*>();
  for (const std::string& name : output_names) {
    wanted.push_back(session.output(name).name.c_str());
  }
  Values values;
  for (Ort::Value& output : session.run(options, fed, wanted)) {
    values.push_back(with_owner(std::move(output), inputs));
  }
  return values;
}

std::shared_ptr<Value> allocate_in(Session& session, ONNXTensorElementDataType type,
                                   const std::vector<std::int64_t>& shape, const Device& device) {
  static_cast<void>(tensor_bytes(type, shape));
  if (device.is_cuda() && !(device == session.device())) {
    throw Error(ErrorKind::invalid_argument, "the session of " + session.model() + " is on " +
                                                 to_string(session.device()) + " and has no memory on " +
                                                 to_string(device));
  }
  const Session::Lock open = session.lock_for_use();
  return checked("making a value of " + session.model(), [&] {
    // The value frees its memory through the allocator, which goes on without the session.
    const auto allocator = std::make_shared<Ort::Allocator>(session.make_allocator(open, memory_info(device)));
    return std::make_shared<Value>(Ort::Value::CreateTensor(*allocator, shape.data(), shape.size(), type), allocator);
  });
}

IoBinding::IoBinding(std::shared_ptr<Session> session) : session_(std::move(session)), generation_(fork_generation()) {
  binding_ = session_->make_binding(session_->lock_for_use());
}

IoBinding::~IoBinding() {
  if (generation_ != fork_generation()) {
    // The parent's: its locks may be held by threads that are not here.
    static_cast<void>(binding_.release());
  }
}

// Calls it while the session cannot be closed and no other thread uses this binding.
auto IoBinding::with_binding(const std::string& what, const auto& function) {
  if (generation_ != fork_generation()) {
    throw Error(ErrorKind::forked, "this IOBinding was created before this process was forked; create it after that");
  }
  const auto open = session_->lock_for_use();
  const std::lock_guard lock(mutex_);
  return checked(what, [&] { return function(open); });
}

void IoBinding::bind_input(const std::string& name, std::shared_ptr<const Value> value) {
  const ValueInfo& declared = session_->input(name);
  check_input(declared, *value);
  // What is replaced is freed when no lock is held: Python's objects may do anything then.
  with_binding("binding input '" + name + "'", [&](const Session::Lock& open) {
    session_->call([&] { session_->bind_inputs(open, [&] { binding_.BindInput(name.c_str(), value->get()); }); });
    inputs_[name].swap(value);
  });
}

void IoBinding::bind_output(const std::string& name, std::shared_ptr<const Value> value) {
  const ValueInfo& declared = session_->output(name);
  if (value->has_value()) {
    check_type("output", declared, *value);
  }
  if (!value->writable()) {
    throw Error(ErrorKind::invalid_argument, "output '" + name + "' cannot be written to a read-only array");
  }
  with_binding("binding output '" + name + "'", [&](const Session::Lock& /*open*/) {
    binding_.BindOutput(name.c_str(), value->get());
    outputs_[name].swap(value);
  });
}

void IoBinding::bind_output(const std::string& name, const Device& device) {
  static_cast<void>(session_->output(name));
  std::shared_ptr<const Value> replaced;
  with_binding("binding output '" + name + "'", [&](const Session::Lock& /*open*/) {
    binding_.BindOutput(name.c_str(), memory_info(device));
    outputs_[name].swap(replaced);
  });
}

void IoBinding::clear_inputs() {
  Bound freed;
  with_binding("clearing the inputs", [&](const Session::Lock& /*open*/) {
    binding_.ClearBoundInputs();
    inputs_.swap(freed);
  });
}

void IoBinding::clear_outputs() {
  Bound freed;
  Values used;
  with_binding("clearing the outputs", [&](const Session::Lock& /*open*/) {
    binding_.ClearBoundOutputs();
    outputs_.swap(freed);
    used_.swap(used);
  });
}

void IoBinding::synchronize(bool inputs) {
  with_binding(inputs ? "synchronizing the inputs" : "synchronizing the outputs", [&](const Session::Lock& /*open*/) {
    // ONNX Runtime waits for the device that is current in the calling thread, whichever that is.
    const DeviceSyncGuard guard(session_->device(), DeviceSyncGuard::Work::waits_for_device);
    std::optional<ScopedContext> current;
    if (session_->device().is_cuda()) {
      current.emplace(CudaStartup::instance(), session_->device().index);
    }
    inputs ? binding_.SynchronizeInputs() : binding_.SynchronizeOutputs();
  });
}

void IoBinding::run(const Ort::RunOptions& options) {
  Values used;
  with_binding("running", [&](const Session::Lock& open) {
    std::vector<const char*> fed;
    for (const auto& [name, value] : inputs_) {
      fed.push_back(name.c_str());
      used.push_back(value);
    }
    session_->check_complete(fed);
    if (outputs_.empty()) {
      throw Error(ErrorKind::invalid_argument, "no output is bound, and a run has one at least");
    }
    for (const auto& [name, value] : outputs_) {
      if (value) {
        used.push_back(value);
      }
    }
    used_.swap(used);
    std::uint64_t shapes = no_shapes;
    for (const auto& [name, value] : inputs_) {
      shapes = add_shape(shapes, value->get());
    }
    session_->call([&] { session_->run(open, options, binding_, shapes); });
  });
}

Values IoBinding::outputs() {
  return with_binding("getting the outputs", [&](const Session::Lock& /*open*/) {
    Values given = used_;
    for (const auto& [name, value] : outputs_) {
      given.push_back(value);
    }
    Values values;
    for (Ort::Value& output : binding_.GetOutputValues()) {
      values.push_back(with_owner(std::move(output), given));
    }
    return values;
  });
}

}  // namespace ortmulti
