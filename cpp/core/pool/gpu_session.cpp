#include "core/pool/gpu_session.hpp"

#include <algorithm>

#include "core/base/error.hpp"
#include "core/ort/library.hpp"
#include "core/ort/value.hpp"

namespace ortmulti {
namespace {

// Where a release cannot tell which device reads an input: small ones are often shapes and the like, which the CPU
// does.
constexpr std::size_t surely_on_device = 4096;

const char* const launching = "launching a CUDA graph";

bool is_plain_tensor(const ValueInfo& declared) {
  return declared.is_tensor && declared.element_type != ONNX_TENSOR_ELEMENT_DATA_TYPE_STRING;
}

void check_graph_holds(const std::vector<ValueInfo>& values, const std::map<std::string, bool, std::less<>>& on_device,
                       const char* what, const std::string& model) {
  for (const ValueInfo& value : values) {
    const auto found = on_device.find(value.name);
    if (!is_plain_tensor(value) || (found != on_device.end() && !found->second)) {
      throw Error(ErrorKind::invalid_argument, model + " cannot be run as a CUDA graph: the " + what + " '" +
                                                   value.name + "' is " + value.type +
                                                   (is_plain_tensor(value) ? " in the CPU's memory" : ""));
    }
  }
}

}  // namespace

DeviceBlocks::DeviceBlocks(CudaStartup& startup, int device) : startup_(startup), device_(device) {
  free_.reserve(kept);
}

std::shared_ptr<const CudaMemory> DeviceBlocks::take(std::size_t bytes) {
  Block block;
  {
    const std::lock_guard lock(mutex_);
    const auto found = std::ranges::find(free_, bytes, [](const auto& entry) { return entry.first; });
    if (found != free_.end()) {
      block = std::move(found->second);
      free_.erase(found);
    }
  }
  if (block) {
    wait_for_default_stream(startup_, device_);  // what read it last may have been asked for there, and not be done
  } else {
    const ScopedContext current(startup_, device_);
    block = std::make_unique<const CudaMemory>(startup_, device_, bytes, "an output takes");
  }
  return {block.release(),
          [blocks = shared_from_this(), bytes](const CudaMemory* memory) { blocks->give_back(bytes, Block(memory)); }};
}

void DeviceBlocks::give_back(std::size_t bytes, Block block) {
  Block oldest;  // freed without the lock
  const std::lock_guard lock(mutex_);
  if (free_.size() == kept) {
    oldest = std::move(free_.front().second);
    free_.erase(free_.begin());
  }
  free_.emplace_back(bytes, std::move(block));
}

void DeviceBlocks::free() {
  std::vector<std::pair<std::size_t, Block>> freed;  // without the lock
  freed.reserve(kept);
  const std::lock_guard lock(mutex_);
  freed.swap(free_);
}

GpuSession::GpuSession(std::shared_ptr<Session> session, bool graphs)
    : session_(std::move(session)),
      graphs_(graphs),
      blocks_(std::make_shared<DeviceBlocks>(CudaStartup::instance(), session_->device().index)) {
  if (const auto placement = session_->placement()) {
    placement_known_ = true;
    for (std::size_t i = 0; i < session_->inputs().size(); ++i) {
      inputs_[session_->inputs()[i].name] = placement->inputs_on_device[i];
    }
    for (std::size_t i = 0; i < session_->outputs().size(); ++i) {
      outputs_[session_->outputs()[i].name] = placement->outputs_on_device[i];
    }
  }
  if (graphs_) {
    if (!placement_known_) {
      throw Error(ErrorKind::not_implemented,
                  "CUDA graphs need ONNX Runtime 1.23 or newer, which says where inputs are read");
    }
    check_graph_holds(session_->inputs(), inputs_, "input", session_->model());
    check_graph_holds(session_->outputs(), outputs_, "output", session_->model());
    CudaStartup& startup = CudaStartup::instance();
    const ScopedContext current(startup, session_->device().index);
    renew_thread();
    launched_ = std::make_unique<CudaEvent>(startup, session_->device().index);
  }
}

bool GpuSession::reads_on_device(std::string_view input, std::size_t bytes) const {
  const auto found = inputs_.find(input);
  return found == inputs_.end() ? !placement_known_ && bytes >= surely_on_device : found->second;
}

bool GpuSession::writes_on_device(std::string_view output) const {
  const auto found = outputs_.find(output);
  return found == outputs_.end() || found->second;
}

void GpuSession::in_thread(const std::function<void()>& work) {
  const std::lock_guard lock(thread_mutex_);
  threads_.back()->call([&work] {
    const Unlogged tried;
    work();
  });
}

void GpuSession::use_for(const std::string& key) {
  const std::lock_guard lock(thread_mutex_);
  if (key_.empty()) {
    key_ = key;
  } else if (key_ != key) {
    throw Error(ErrorKind::fail, "a session that captures CUDA graphs runs inputs of one shape only");
  }
}

void GpuSession::renew_thread() {
  auto thread = std::make_unique<AsyncRuns>();
  thread->call([] {});  // an Error where it cannot start
  const std::lock_guard lock(thread_mutex_);
  threads_.push_back(std::move(thread));
}

LaunchTimes::Launch GpuSession::launch(const CudaGraph& graph, CUstream stream, const void* shape) {
  const CudaStartup& startup = CudaStartup::instance();
  const CudaDriver& driver = startup.driver();
  startup.check(driver.stream_wait_event(stream, launched_->get(), 0), launching);
  graph.launch(stream);
  startup.check(driver.event_record(launched_->get(), stream), launching);
  const MutexLock lock(launch_times_mutex_);
  return launch_times_.begin(LaunchTimes::Clock::now(), shape);
}

void GpuSession::end_launch(const LaunchTimes::Launch& launch, std::optional<LaunchTimes::Clock::time_point> woke) {
  const MutexLock lock(launch_times_mutex_);
  launch_times_.end(LaunchTimes::Clock::now(), launch, woke);
}

void GpuSession::wait_for_launched() { CudaStartup::instance().check(launched_->wait(), launching); }

std::optional<std::vector<RequestTensor>> tensors_of(const Request& request, const GpuSession& session) {
  std::vector<RequestTensor> tensors;
  tensors.reserve(request.inputs.size());
  for (std::size_t i = 0; i < request.inputs.size(); ++i) {
    const Ort::Value& value = request.inputs.values()[i];
    if (value == nullptr || !value.HasValue() || !value.IsTensor()) {
      return std::nullopt;
    }
    const auto info = value.GetTensorTypeAndShapeInfo();
    RequestTensor tensor;
    tensor.type = info.GetElementType();
    if (tensor.type == ONNX_TENSOR_ELEMENT_DATA_TYPE_STRING) {
      return std::nullopt;
    }
    tensor.name = request.inputs.names()[i];
    tensor.shape = info.GetShape();
    tensor.bytes = tensor_bytes(tensor.type, tensor.shape);
    tensor.data = value.GetTensorRawData();
    tensor.device = device_of(value.GetTensorMemoryInfo());
    tensor.value = &value;
    tensor.to_copy = tensor.device != session.session()->device() && tensor.bytes != 0 &&
                     session.reads_on_device(tensor.name, tensor.bytes);
    tensors.push_back(std::move(tensor));
  }
  return tensors;
}

std::optional<Device> device_of_inputs(const Request& request) {
  std::optional<Device> found;
  for (std::size_t i = 0; i < request.inputs.size(); ++i) {
    const Ort::Value& value = request.inputs.values()[i];
    if (value == nullptr || !value.HasValue() || !value.IsTensor()) {
      continue;
    }
    const Device device = device_of(value.GetTensorMemoryInfo());
    if (device.is_cuda() && found && *found != device) {
      return std::nullopt;
    }
    if (device.is_cuda()) {
      found = device;
    }
  }
  return found;
}

std::string shapes_key(const std::vector<RequestTensor>& inputs) {
  std::string key;
  for (const RequestTensor& input : inputs) {
    key += input.name;
    key += '\0';
    key += std::to_string(static_cast<int>(input.type));
    for (const std::int64_t size : input.shape) {
      key += ',' + std::to_string(size);
    }
    key += ';';
  }
  return key;
}

std::size_t aligned(std::size_t bytes) {
  constexpr std::size_t alignment = 256;  // as CUDA's own allocations have it
  return (bytes + alignment - 1) / alignment * alignment;
}

}  // namespace ortmulti
