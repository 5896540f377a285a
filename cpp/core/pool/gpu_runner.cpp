#include "core/pool/gpu_runner.hpp"

#include <algorithm>
#include <cstring>
#include <new>
#include <thread>
#include <utility>

#include "core/base/error.hpp"
#include "core/base/scope_exit.hpp"
#include "core/cuda/device_sync_guard.hpp"
#include "core/ort/advice.hpp"
#include "core/ort/library.hpp"
#include "core/ort/value.hpp"
#include "core/pool/request.hpp"

namespace ortmulti {
namespace {

using Clock = Request::Clock;

bool is_on_gpu(const Ort::Value& value) {
  return value != nullptr && value.HasValue() && value.IsTensor() && device_of(value.GetTensorMemoryInfo()).is_cuda();
}

// A run with this one captures nothing by itself.
const char* const graph_id = "gpu_graph_id";
const char* const no_graph = "-1";

std::size_t output_index(const Session& session, const char* name) {
  std::size_t index = 0;
  while (session.outputs().at(index).name != name) {
    ++index;
  }
  return index;
}

std::uint64_t shapes_of(const std::vector<RequestTensor>& inputs) {
  std::uint64_t shapes = no_shapes;
  for (const RequestTensor& input : inputs) {
    shapes = add_shape(shapes, *input.value);
  }
  return shapes;
}

// The key of the inputs, which are in its order then.
std::string sort_by_name(std::vector<RequestTensor>& inputs) {
  std::ranges::sort(inputs, {}, [](const auto& input) { return std::string_view(input.name); });
  return shapes_key(inputs);
}

bool all_same_bits(const std::vector<Ort::Value>& left, const std::vector<Ort::Value>& right) {
  return std::ranges::equal(left, right, same_bits);
}

// Adds what passes during its result's lifetime to the time that copies took.
auto copying_time(Request& request) {
  return ScopeExit([&request, began = Clock::now()] { request.copying += Clock::now() - began; });
}

}  // namespace

GpuRunner::GpuRunner(std::shared_ptr<GpuSession> session, std::shared_ptr<ShapeGraphs> graphs)
    : SessionRunner(session->session()), shared_(std::move(session)), shape_graphs_(std::move(graphs)) {}

void GpuRunner::prepare() {
  if (copies_) {
    return;
  }
  CudaStartup& startup = CudaStartup::instance();
  const ScopedContext current(startup, device().index);
  auto copies = std::make_unique<StagedCopies>(startup, device().index);
  if (shared_->graphs()) {
    ordinary_ = Ort::RunOptions();
    ordinary_.AddConfigEntry(graph_id, no_graph);
    capturing_ = Ort::RunOptions();
    capturing_.AddConfigEntry(graph_id, no_graph);
    capturing_.AddConfigEntry("disable_synchronize_execution_providers", "1");
  }
  binding_ = shared_->session()->make_binding(shared_->session()->lock_for_use());
  copies_ = std::move(copies);
}

std::uint64_t GpuRunner::graph_bytes() const { return graph_ ? graph_->memory->bytes() : 0; }

void GpuRunner::free_buffers() {
  shared_->free_blocks();
  frees_staged_ = true;
  // A run uses them, and may be this thread's, or wait for this one since it lacks memory: it frees them when it ends.
  while (frees_staged_ && !in_run_) {
    if (const std::unique_lock idle(running_, std::try_to_lock); idle) {
      free_staged();
    }
  }
}

void GpuRunner::free_staged() noexcept {
  if (frees_staged_.exchange(false)) {
    staged_.reset();
    staged_bytes_ = 0;
  }
}

std::string GpuRunner::why_memory_is_short() noexcept {
  try {
    CudaStartup& startup = CudaStartup::instance();
    const ScopedContext current(startup, device().index);
    const CudaStartup::Memory memory = startup.memory(device().index);
    if (memory.free < memory.total / 4) {
      return "less than a quarter of the GPU's memory is free";
    }
    return {};
  } catch (const std::exception& error) {
    return error.what();
  }
}

GpuRunner::~GpuRunner() {
  const ScopedContext current(CudaStartup::instance(), device().index, std::nothrow);
  graph_.reset();
  copies_.reset();
  staged_.reset();
}

void GpuRunner::run(Request& request) {
  request.prepare(shared_->session());
  const std::lock_guard running(running_);
  in_run_ = true;
  const ScopeExit ended([this] {
    in_run_ = false;
    free_staged();
  });
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
    if (graph_) {
      sort_by_name(*inputs);
      run_graph(request, *inputs, *graph_);
    } else if (shape_graphs_) {
      const std::string key = sort_by_name(*inputs);
      run_with_graphs(request, *inputs, key);
    } else {
      run_ordinarily(request, *inputs);
    }
  } catch (const Ort::Exception& exception) {
    throw from_onnxruntime(exception, "running " + shared_->session()->model() + " on " + to_string(device()));
  } catch (const Error& error) {
    rethrow_with_unequal_sizes(error, shared_->session()->inputs(), request.inputs);
  }
}

void GpuRunner::run_ordinarily(Request& request, const Tensors& inputs) {
  Session& session = *shared_->session();
  const ScopedContext current(CudaStartup::instance(), device().index);  // in_thread() is another one
  const auto open = session.lock_for_use();
  const ScopeExit unbind([this] {  // what is bound may be the caller's
    binding_.ClearBoundInputs();
    binding_.ClearBoundOutputs();
  });
  {
    const auto copying = copying_time(request);
    const ScopedSpan span(request.trace, "copy", device_name());
    bind_inputs(inputs, open);
  }
  for (const char* name : request.output_names) {
    binding_.BindOutput(name, memory_info(shared_->writes_on_device(name) ? device() : Device::cpu()));
  }
  static const Ort::RunOptions none{nullptr};
  const bool graphs = shared_->graphs();
  const Ort::RunOptions& given = graphs ? ordinary_ : none;
  GpuSession::Slot slot;  // until the outputs are out of the memory that a graph would overwrite
  if (graphs) {
    slot = shared_->take_slot();
    shared_->wait_for_launched();
  }
  {
    const ScopedSpan span(request.trace, "run", device_name());
    session.run(open, request.run_options == nullptr ? given : *request.run_options, binding_, shapes_of(inputs));
  }
  answer(request, binding_.GetOutputValues(), graphs);
}

void GpuRunner::run_with_graphs(Request& request, const Tensors& inputs, const std::string& key) {
  if (request.run_options != nullptr && !request.own_run_options) {
    run_ordinarily(request, inputs);
    return;
  }
  bool wanted = false;
  if (!run_by_graph(request, key)) {
    const auto counted = shape_graphs_->ordinary_run();
    run_ordinarily(request, inputs);
    wanted = shape_graphs_->count_ordinary_run(key);
  } else {
    wanted = shape_graphs_->count_graph_run(key);
  }
  if (!wanted) {
    return;
  }
  if (const std::string reason = why_memory_is_short(); !reason.empty()) {
    shape_graphs_->not_now(key, reason);
    return;
  }
  try {
    shape_graphs_->want(key, sample_of(inputs, request));
  } catch (const std::exception& error) {
    shape_graphs_->not_made(key, error.what());
  }
}

bool GpuRunner::run_by_graph(Request& request, const std::string& key) {
  const Clock::time_point began = Clock::now();
  const auto graph = shape_graphs_->take(key);
  if (!graph) {
    return false;
  }
  const auto waited = Clock::now() - began;
  if (request.ending.load()) {
    throw Error(ErrorKind::cancelled, "the request is not wanted any more");
  }
  try {
    graph->run(request);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::out_of_memory) {
      shape_graphs_->drop(key, error.what());
    }
    return false;
  }
  request.waiting_for_session += waited;
  return true;
}

ShapeGraphs::Sample GpuRunner::sample_of(const Tensors& inputs, const Request& answered) {
  ShapeGraphs::Sample sample;
  for (const RequestTensor& input : inputs) {
    sample.inputs.emplace_back(input.name, copy_on_host(*input.value));
  }
  for (std::size_t i = 0; i < answered.outputs.size(); ++i) {
    sample.outputs.emplace_back(answered.output_names[i], copy_on_host(answered.outputs[i]));
  }
  return sample;
}

std::vector<Ort::Value> GpuRunner::prove(Request& one, Request& other) {
  const std::lock_guard running(running_);
  prepare();
  const ScopedContext current(CudaStartup::instance(), device().index);
  auto tensors = tensors_of(one, *shared_);
  auto other_tensors = tensors_of(other, *shared_);
  if (!tensors || !other_tensors) {
    throw Error(ErrorKind::not_implemented, "an input is no tensor that a GPU could have");
  }
  const std::string key = sort_by_name(*tensors);
  sort_by_name(*other_tensors);
  const Tensors& inputs = *tensors;
  const Tensors& others = *other_tensors;
  shared_->use_for(key);
  const auto ordinarily = [&](Request& request, const Tensors& given) {
    shared_->in_thread([&] { run_ordinarily(request, given); });
    return std::exchange(request.outputs, {});
  };
  std::vector<Ort::Value> expected = ordinarily(one, inputs);
  if (!all_same_bits(expected, ordinarily(one, inputs))) {
    throw Error(ErrorKind::not_implemented, "two runs of the same inputs do not have the same bits");
  }
  const std::vector<Ort::Value> expected_other = ordinarily(other, others);
  CapturedGraph& graph = capture(inputs, expected);
  const auto launched = [&](Request& request, const Tensors& given) {
    for (Ort::Value& output : graph.outputs) {
      const std::vector<std::byte> poison(tensor_bytes(output), std::byte{0xA5});
      if (!poison.empty()) {
        copies_->from_host(output.GetTensorMutableRawData(), poison.data(), poison.size());
      }
    }
    copies_->wait();
    run_graph(request, given, graph);
    return std::exchange(request.outputs, {});
  };
  if (!all_same_bits(expected_other, launched(other, others)) || !all_same_bits(expected, launched(one, inputs))) {
    throw Error(ErrorKind::not_implemented, "its CUDA graph has other bits than ordinary runs");
  }
  return expected;
}

GpuRunner::CapturedGraph& GpuRunner::capture(const Tensors& inputs, const std::vector<Ort::Value>& outputs) {
  for (int tries_left = 2; !graph_; --tries_left) {
    try {
      shared_->in_thread([&] { capture_once(inputs, outputs); });
    } catch (const CaptureInvalidated&) {
      shared_->renew_thread();  // ONNX Runtime keeps what a capture left there
      if (tries_left == 0) {
        throw;
      }
    }
  }
  return *graph_;
}

void GpuRunner::capture_once(const Tensors& inputs, const std::vector<Ort::Value>& outputs) {
  Session& session = *shared_->session();
  CudaStartup& startup = CudaStartup::instance();
  const ScopedContext current(startup, device().index);
  const auto open = session.lock_for_use();
  const GpuSession::Slot slot = shared_->take_slot();
  shared_->wait_for_launched();
  CapturedGraph graph = prepare_graph(inputs, outputs, open);
  // ONNX Runtime plans its memory in the first run of a shape, and has it from the second on.
  session.run(open, ordinary_, graph.binding, shapes_of(inputs));
  {
    const auto weights = session.hold_weights(open);
    const DeviceSyncGuard guard(device(), DeviceSyncGuard::Work::may_capture);
    graph.graph = std::make_unique<const CudaGraph>(
        startup, session.compute_stream(), [&] { session.run_to_capture(open, weights, capturing_, graph.binding); });
  }
  graph_ = std::move(graph);
}

GpuRunner::CapturedGraph GpuRunner::prepare_graph(const Tensors& inputs, const std::vector<Ort::Value>& outputs,
                                                  const Session::Lock& open) const {
  std::size_t bytes = 0;
  for (const RequestTensor& input : inputs) {
    bytes += aligned(input.bytes);
  }
  for (const Ort::Value& output : outputs) {
    bytes += aligned(tensor_bytes(output));
  }
  Session& session = *shared_->session();
  CapturedGraph graph;
  graph.memory = std::make_unique<const CudaMemory>(
      CudaStartup::instance(), device().index, bytes,
      CudaMemory::Purpose("inputs and outputs of a CUDA graph take", MemoryUse::graphs));
  graph.binding = session.make_binding(open);
  CUdeviceptr next = graph.memory->address();
  const auto place = [&](ONNXTensorElementDataType type, const std::vector<std::int64_t>& shape) {
    void* const at = to_pointer(next);
    next += aligned(tensor_bytes(type, shape));
    return tensor_over(at, type, shape, device());
  };
  session.bind_inputs(open, [&] {
    for (const RequestTensor& input : inputs) {
      Ort::Value value = place(input.type, input.shape);
      graph.inputs.push_back(value.GetTensorMutableRawData());
      graph.binding.BindInput(input.name, value);
    }
  });
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const auto info = outputs[i].GetTensorTypeAndShapeInfo();
    graph.outputs.push_back(place(info.GetElementType(), info.GetShape()));
    graph.binding.BindOutput(session.outputs()[i].name.c_str(), graph.outputs.back());
  }
  return graph;
}

void GpuRunner::run_graph(Request& request, const Tensors& inputs, CapturedGraph& graph) {
  Session& session = *shared_->session();
  const auto open = session.lock_for_use();
  const auto weights = session.hold_weights(open);
  {
    const auto copying = copying_time(request);
    const ScopedSpan span(request.trace, "copy", device_name());
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      copy_in(graph.inputs[i], inputs[i]);
    }
  }
  {
    const ScopedSpan span(request.trace, "run", device_name());
    LaunchTimes::Launch launched;
    {
      const GpuSession::Slot slot = shared_->take_slot();
      launched = shared_->launch(*graph.graph, copies_->stream(), &graph);
    }
    std::optional<LaunchTimes::Clock::time_point> woke;
    const ScopeExit end([&] { shared_->end_launch(launched, woke); });
    if (const auto wake = wake_time_.before(LaunchTimes::Clock::now(), launched.expected_end)) {
      std::this_thread::sleep_until(*wake);
      woke = LaunchTimes::Clock::now();
      wake_time_.record(*wake, *woke);
    }
    copies_->wait();
  }
  std::vector<Ort::Value> outputs;
  outputs.reserve(request.output_names.size());
  for (const char* name : request.output_names) {
    Ort::Value& fixed = graph.outputs.at(output_index(session, name));
    const auto info = fixed.GetTensorTypeAndShapeInfo();
    outputs.push_back(tensor_over(fixed.GetTensorMutableRawData(), info.GetElementType(), info.GetShape(), device()));
  }
  answer(request, std::move(outputs), true);
  request.by_graph = true;
}

void GpuRunner::bind_inputs(const Tensors& inputs, const Session::Lock& open) {
  std::size_t bytes = 0;
  for (const RequestTensor& input : inputs) {
    bytes += input.to_copy ? aligned(input.bytes) : 0;
  }
  if (bytes > staged_bytes_) {
    staged_.reset();
    staged_bytes_ = 0;
    staged_ = std::make_unique<const CudaMemory>(CudaStartup::instance(), device().index, bytes, "the inputs take");
    staged_bytes_ = bytes;
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
  } else {
    copies_->from_host(target, input.data, input.bytes);
  }
}

void GpuRunner::answer(Request& request, std::vector<Ort::Value> outputs, bool copy_on_device) {
  const auto copying = copying_time(request);
  const ScopedSpan span(request.trace, "copy", device_name());
  const auto lies_in_staged = [this](const void* data) {
    const auto address = reinterpret_cast<CUdeviceptr>(data);
    return staged_ && address >= staged_->address() && address - staged_->address() < staged_bytes_;
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
