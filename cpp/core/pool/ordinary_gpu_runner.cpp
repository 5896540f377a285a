#include "core/pool/ordinary_gpu_runner.hpp"

#include <cstddef>
#include <exception>
#include <mutex>
#include <utility>

#include "core/base/error.hpp"
#include "core/base/scope_exit.hpp"
#include "core/cuda/memory.hpp"
#include "core/cuda/startup.hpp"
#include "core/ort/value.hpp"
#include "core/pool/captured_runner.hpp"

namespace ortmulti {
namespace {

ShapeGraphs::Sample sample_of(const std::vector<RequestTensor>& inputs, const Request& answered) {
  ShapeGraphs::Sample sample;
  for (const RequestTensor& input : inputs) {
    sample.inputs.emplace_back(input.name, copy_on_host(*input.value));
  }
  for (std::size_t i = 0; i < answered.outputs.size(); ++i) {
    sample.outputs.emplace_back(answered.output_names[i], copy_on_host(answered.outputs[i]));
  }
  return sample;
}

}  // namespace

OrdinaryGpuRunner::OrdinaryGpuRunner(std::shared_ptr<GpuSession> session, std::shared_ptr<ShapeGraphs> graphs)
    : GpuRunner(std::move(session)), shape_graphs_(std::move(graphs)) {}

void OrdinaryGpuRunner::run(Request& request) {
  request.prepare(shared_->session());
  const std::lock_guard running(running_);
  in_run_ = true;
  const ScopeExit ended([this] {
    in_run_ = false;
    free_staged();
  });
  GpuRunner::run(request);
}

void OrdinaryGpuRunner::free_buffers() {
  shared_->free_blocks();
  free_memory_for_inputs();
  frees_staged_ = true;
  // A run uses them, and may be this thread's, or wait for this one since it lacks memory: it frees them when it ends.
  while (frees_staged_ && !in_run_) {
    if (const std::unique_lock idle(running_, std::try_to_lock); idle) {
      free_staged();
    }
  }
}

void OrdinaryGpuRunner::free_staged() noexcept {
  if (frees_staged_.exchange(false)) {
    staged_.reset();
  }
}

std::string OrdinaryGpuRunner::why_memory_is_short() noexcept {
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

void OrdinaryGpuRunner::run_tensors(Request& request, Tensors& inputs) {
  if (!shape_graphs_) {
    run_ordinarily(request, inputs);
    return;
  }
  sort_by_name(inputs);
  if (request.run_options != nullptr && !request.own_run_options) {
    run_ordinarily(request, inputs);
  } else {
    run_with_graphs(request, inputs);
  }
}

void OrdinaryGpuRunner::run_ordinarily(Request& request, const Tensors& inputs) {
  static const Ort::RunOptions none{nullptr};
  const auto open = shared_->session()->lock_for_use();
  const Ort::RunOptions& run_options = request.run_options == nullptr ? none : *request.run_options;
  answer(request, run_session(request, inputs, open, run_options), false);
}

void OrdinaryGpuRunner::run_with_graphs(Request& request, const Tensors& inputs) {
  const std::string key = shapes_key(inputs);
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

bool OrdinaryGpuRunner::run_by_graph(Request& request, const std::string& key) {
  const Request::Clock::time_point began = Request::Clock::now();
  const auto graph = shape_graphs_->take(key);
  if (!graph) {
    return false;
  }
  const auto waited = Request::Clock::now() - began;
  if (request.ending.load()) {
    throw Error(ErrorKind::cancelled, "the request is not wanted any more");
  }
  try {
    graph->run(request);
  } catch (const Error& error) {
    const bool passes = error.kind() == ErrorKind::out_of_memory || error.kind() == ErrorKind::closed ||
                        error.kind() == ErrorKind::cancelled;
    if (!passes) {
      shape_graphs_->drop(key, error.what());
    }
    return false;
  }
  request.waiting_for_session += waited;
  return true;
}

}  // namespace ortmulti
