#include "core/pool/gpu_runner.hpp"

#include <cstddef>
#include <cstdint>
#include <new>
#include <utility>

#include "core/base/error.hpp"
#include "core/base/scope_exit.hpp"
#include "core/cuda/startup.hpp"
#include "core/ort/advice.hpp"
#include "core/ort/value.hpp"

namespace ortmulti {
namespace {

bool is_on_gpu(const Ort::Value& value) {
  return value != nullptr && value.HasValue() && value.IsTensor() && device_of(value.GetTensorMemoryInfo()).is_cuda();
}

}  // namespace

GpuRunner::GpuRunner(std::shared_ptr<GpuSession> session)
    : SessionRunner(session->session()), shared_(std::move(session)) {}

GpuRunner::~GpuRunner() {
  const ScopedContext current(CudaStartup::instance(), device().index, std::nothrow);
  copies_.reset();
  staged_.reset();
}

void GpuRunner::prepare() {
  if (copies_) {
    return;
  }
  CudaStartup& startup = CudaStartup::instance();
  const ScopedContext current(startup, device().index);
  auto copies = std::make_unique<StagedCopies>(startup, device().index);
  binding_ = shared_->session()->make_binding(shared_->session()->lock_for_use());
  copies_ = std::move(copies);
}

std::shared_ptr<std::byte> GpuRunner::memory_for_inputs(std::size_t bytes) noexcept {
  constexpr std::size_t worth_pinning = 1U << 20U;  // what is less passes through buffers that are pinned already
  if (bytes < worth_pinning) {
    return nullptr;
  }
  const MutexLock lock(pinned_mutex_);
  if (bytes >= refused_bytes_) {
    return nullptr;
  }
  if (pinned_ && pinned_bytes_ >= bytes && pinned_.use_count() == 1) {
    return pinned_;
  }
  pinned_.reset();
  pinned_bytes_ = 0;
  try {
    CudaStartup& startup = CudaStartup::instance();
    const ScopedContext current(startup, device().index);
    auto buffer = std::make_unique<PinnedBuffers>(bytes, 1);
    buffer->pin(startup, device_name());
    auto* const begin = reinterpret_cast<std::byte*>((*buffer)[0]);
    pinned_ = {begin, [owned = buffer.release(), index = device().index](std::byte* /*begin*/) {  // also if that throws
                 const ScopedContext freeing(CudaStartup::instance(), index, std::nothrow);
                 delete owned;  // NOLINT(cppcoreguidelines-owning-memory)
               }};
    pinned_bytes_ = bytes;
  } catch (const std::exception&) {  // the inputs are copied once more, then
    refused_bytes_ = bytes;
  }
  return pinned_;
}

void GpuRunner::free_memory_for_inputs() {
  std::shared_ptr<std::byte> freed;  // without the lock
  const MutexLock lock(pinned_mutex_);
  freed.swap(pinned_);
}

void GpuRunner::run(Request& request) {
  prepare();
  request.copying = {};
  request.waiting_for_session = {};
  request.outputs.clear();
  const ScopedContext current(CudaStartup::instance(), device().index);
  try {
    auto inputs = tensors_of(request, *shared_);
    if (!inputs) {
      SessionRunner::run(request);
      return;
    }
    std::uint64_t bytes = 0;
    for (const RequestTensor& input : *inputs) {
      bytes += input.bytes;
    }
    note_run(bytes);
    try {
      run_tensors(request, *inputs);
    } catch (...) {
      copies_->settle();  // they may read pinned memory, which others get
      throw;
    }
  } catch (const Ort::Exception& exception) {
    throw from_onnxruntime(exception, "running " + shared_->session()->model() + " on " + to_string(device()));
  } catch (const Error& error) {
    rethrow_with_unequal_sizes(error, shared_->session()->inputs(), request.inputs);
  }
}

std::vector<Ort::Value> GpuRunner::run_session(Request& request, const Tensors& inputs, const Session::Lock& open,
                                               const Ort::RunOptions& run_options) {
  note_session_run();
  const ScopeExit unbind([this] {  // what is bound may be the caller's
    binding_.ClearBoundInputs();
    binding_.ClearBoundOutputs();
  });
  {
    const CopyingTime copying(request, device_name());
    bind_inputs(inputs, open);
  }
  for (const char* name : request.output_names) {
    binding_.BindOutput(name, memory_info(shared_->writes_on_device(name) ? device() : Device::cpu()));
  }
  {
    const ScopedSpan span(request.trace, "run", device_name());
    shared_->session()->run(open, run_options, binding_, shapes_of(inputs));
  }
  return binding_.GetOutputValues();
}

void GpuRunner::bind_inputs(const Tensors& inputs, const Session::Lock& open) {
  std::size_t bytes = 0;
  for (const RequestTensor& input : inputs) {
    bytes += input.to_copy ? aligned(input.bytes) : 0;
  }
  if (bytes > (staged_ ? staged_->bytes() : 0)) {
    staged_.reset();
    staged_ = std::make_unique<const CudaMemory>(CudaStartup::instance(), device().index, bytes, "the inputs take");
  }
  CUdeviceptr next = staged_ ? staged_->address() : 0;
  std::vector<Ort::Value> copied;
  for (const RequestTensor& input : inputs) {
    if (!input.to_copy) {
      copied.emplace_back(nullptr);
      continue;
    }
    void* const at = to_pointer(next);
    next += aligned(input.bytes);
    copy_in(at, input);
    copied.push_back(tensor_over(at, input.type, input.shape, device()));
  }
  if (bytes != 0) {
    copies_->wait();
  }
  shared_->session()->bind_inputs(open, [&] {
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      binding_.BindInput(inputs[i].name, inputs[i].to_copy ? copied[i] : *inputs[i].value);
    }
  });
}

void GpuRunner::copy_in(void* target, const RequestTensor& input) {
  if (input.bytes == 0) {
    return;
  }
  if (input.device.is_cuda()) {
    copies_->from_device(target, input.device.index, input.data, input.bytes);
  } else if (input.pinned) {
    copies_->from_pinned(target, input.data, input.bytes);
  } else {
    copies_->from_host(target, input.data, input.bytes);
  }
}

void GpuRunner::answer(Request& request, std::vector<Ort::Value> outputs, bool copy_on_device) {
  const CopyingTime copying(request, device_name());
  const auto lies_in_staged = [this](const void* data) {
    const CUdeviceptr address = to_address(data);
    return staged_ && address >= staged_->address() && address - staged_->address() < staged_->bytes();
  };
  request.output_owners.assign(outputs.size(), nullptr);
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    if (!is_on_gpu(outputs[i])) {
      continue;
    }
    if (!request.outputs_on_device) {
      outputs[i] = to_host(outputs[i]);
    } else if (copy_on_device || lies_in_staged(outputs[i].GetTensorRawData())) {
      const auto memory = shared_->allocate(tensor_bytes(outputs[i]));
      outputs[i] = copy_to(*memory, outputs[i]);
      request.output_owners[i] = memory;
    }
  }
  request.outputs = std::move(outputs);
}

Ort::Value GpuRunner::to_host(const Ort::Value& value) {
  const auto info = value.GetTensorTypeAndShapeInfo();
  Ort::Value copy = new_tensor(info.GetElementType(), info.GetShape());
  copies_->to_host(copy.GetTensorMutableRawData(), value.GetTensorRawData(), tensor_bytes(value));
  return copy;
}

Ort::Value GpuRunner::copy_to(const CudaMemory& memory, const Ort::Value& value) {
  void* const at = to_pointer(memory.address());
  const std::size_t bytes = tensor_bytes(value);
  if (bytes != 0) {
    copies_->from_device(at, device().index, value.GetTensorRawData(), bytes);
    copies_->wait();
  }
  const auto info = value.GetTensorTypeAndShapeInfo();
  return tensor_over(at, info.GetElementType(), info.GetShape(), device());
}

}  // namespace ortmulti
