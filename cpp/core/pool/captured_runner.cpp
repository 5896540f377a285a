#include "core/pool/captured_runner.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "core/base/error.hpp"
#include "core/base/retry.hpp"
#include "core/base/scope_exit.hpp"
#include "core/base/timeline.hpp"
#include "core/cuda/device_sync_guard.hpp"
#include "core/cuda/startup.hpp"
#include "core/ort/value.hpp"

namespace ortmulti {
namespace {

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

bool all_same_bits(const std::vector<Ort::Value>& left, const std::vector<Ort::Value>& right) {
  return std::ranges::equal(left, right, same_bits);
}

}  // namespace

CapturedRunner::CapturedRunner(const std::shared_ptr<CapturedSession>& session)
    : GpuRunner(session), captured_(*session) {
  ordinary_.AddConfigEntry(graph_id, no_graph);
  capturing_.AddConfigEntry(graph_id, no_graph);
  capturing_.AddConfigEntry("disable_synchronize_execution_providers", "1");
}

CapturedRunner::~CapturedRunner() {
  const ScopedContext current(CudaStartup::instance(), device().index, std::nothrow);
  graph_.reset();
}

std::vector<Ort::Value> CapturedRunner::prove(Request& one, Request& other) {
  prepare();
  const ScopedContext current(CudaStartup::instance(), device().index);
  auto tensors = tensors_of(one, captured_);
  auto other_tensors = tensors_of(other, captured_);
  if (!tensors || !other_tensors) {
    throw Error(ErrorKind::not_implemented, "an input is no tensor that a GPU could have");
  }
  sort_by_name(*tensors);
  sort_by_name(*other_tensors);
  const Tensors& inputs = *tensors;
  const Tensors& others = *other_tensors;
  captured_.shape().use(shapes_key(inputs));
  const auto ordinarily = [&](Request& request, const Tensors& given) {
    captured_.in_thread([&](const Session::Lock& open) {
      answer(request, run_session(request, given, open, ordinary_), true);  // a graph would overwrite the outputs
    });
    return std::exchange(request.outputs, {});
  };
  std::vector<Ort::Value> expected = ordinarily(one, inputs);
  if (!all_same_bits(expected, ordinarily(one, inputs))) {
    throw Error(ErrorKind::not_implemented, "two runs of the same inputs do not have the same bits");
  }
  const std::vector<Ort::Value> expected_other = ordinarily(other, others);
  capture(inputs, expected);
  const auto launched = [&](Request& request, const Tensors& given) {
    for (Ort::Value& output : graph_->outputs) {
      const std::vector<std::byte> poison(tensor_bytes(output), std::byte{0xA5});
      if (!poison.empty()) {
        copies_->from_host(output.GetTensorMutableRawData(), poison.data(), poison.size());
      }
    }
    copies_->wait();
    run_graph(request, given);
    return std::exchange(request.outputs, {});
  };
  if (!all_same_bits(expected_other, launched(other, others)) || !all_same_bits(expected, launched(one, inputs))) {
    throw Error(ErrorKind::not_implemented, "its CUDA graph has other bits than ordinary runs");
  }
  staged_.reset();  // launches have the graph's own
  return expected;
}

void CapturedRunner::capture(const Tensors& inputs, const std::vector<Ort::Value>& outputs) {
  const Retry invalidated{
      .concerns = [](const Error& error) { return dynamic_cast<const CaptureInvalidated*>(&error) != nullptr; },
      .times = 2};
  with_retries({invalidated}, [&] {
    try {
      captured_.in_thread([&](const Session::Lock& open) { capture_once(inputs, outputs, open); });
    } catch (const CaptureInvalidated&) {
      captured_.renew_thread();  // ONNX Runtime keeps what a capture left there
      throw;
    }
  });
}

void CapturedRunner::capture_once(const Tensors& inputs, const std::vector<Ort::Value>& outputs,
                                  const Session::Lock& open) {
  Session& session = *captured_.session();
  CapturedGraph graph = prepare_graph(inputs, outputs, open);
  // ONNX Runtime plans its memory in the first run of a shape, and has it from the second on.
  session.run(open, ordinary_, graph.binding, shapes_of(inputs));
  {
    const auto weights = session.hold_weights(open);
    const DeviceSyncGuard guard(device(), DeviceSyncGuard::Work::may_capture);
    graph.graph = std::make_unique<const CudaGraph>(CudaStartup::instance(), session.compute_stream(), [&] {
      session.run_to_capture(open, weights, capturing_, graph.binding);
    });
  }
  graph_ = std::make_unique<CapturedGraph>(std::move(graph));
}

CapturedRunner::CapturedGraph CapturedRunner::prepare_graph(const Tensors& inputs,
                                                            const std::vector<Ort::Value>& outputs,
                                                            const Session::Lock& open) const {
  std::size_t bytes = 0;
  for (const RequestTensor& input : inputs) {
    bytes += aligned(input.bytes);
  }
  for (const Ort::Value& output : outputs) {
    bytes += aligned(tensor_bytes(output));
  }
  Session& session = *captured_.session();
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

void CapturedRunner::run_graph(Request& request, const Tensors& inputs) {
  CapturedGraph& graph = *graph_;
  Session& session = *captured_.session();
  const auto open = session.lock_for_use();
  const auto weights = session.hold_weights(open);
  {
    const CopyingTime copying(request, device_name());
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      copy_in(graph.inputs[i], inputs[i]);
    }
  }
  {
    const ScopedSpan span(request.trace, "run", device_name());
    const LaunchTimes::Launch launched = captured_.launch(*graph.graph, copies_->stream(), &graph);
    std::optional<LaunchTimes::Clock::time_point> woke;
    const ScopeExit end([&] { captured_.end_launch(launched, woke); });
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

void CapturedRunner::run_tensors(Request& request, Tensors& inputs) {
  sort_by_name(inputs);
  run_graph(request, inputs);
}

}  // namespace ortmulti
