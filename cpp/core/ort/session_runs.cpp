// What runs a session, and tries again.
#include <algorithm>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/scope_exit.hpp"
#include "core/cuda/device_sync_guard.hpp"
#include "core/cuda/memory.hpp"
#include "core/cuda/startup.hpp"
#include "core/memory/device_memory.hpp"
#include "core/ort/advice.hpp"
#include "core/ort/device_use.hpp"
#include "core/ort/session_steps.hpp"

namespace ortmulti {
namespace {

// An output that is an input of the host's comes back from the device. ONNX Runtime copies it there on one stream and
// back on another, and waits for neither between (1.31.1): of new sessions on an H100, 4 of 100 had zeros.
void give_inputs_back(const RunInputs& inputs, const std::vector<const char*>& output_names,
                      std::vector<Ort::Value>& outputs) {
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const auto same = [name = std::string_view(inputs.names()[i])](const char* output) { return name == output; };
    const auto found = std::ranges::find_if(output_names, same);
    const Ort::Value& value = inputs.values()[i];
    if (found == output_names.end() || value == nullptr || !value.HasValue() || !value.IsTensor() ||
        device_of(value.GetTensorMemoryInfo()).is_cuda()) {
      continue;
    }
    if (value.GetTensorTypeAndShapeInfo().GetElementType() != ONNX_TENSOR_ELEMENT_DATA_TYPE_STRING) {
      outputs[static_cast<std::size_t>(found - output_names.begin())] = copy_on_host(value);
    }
  }
}

// cuDNN captures a convolution's first run of a shape, and a run of another session spoils that at times, through no
// call that is known. It says only that the execution failed.
bool may_have_lost_capture(const Error& error) {
  const std::string_view text = error.what();
  return text.find("CUDNN_BACKEND_API_FAILED") != std::string_view::npos ||
         text.find("CUDNN_STATUS_EXECUTION_FAILED") != std::string_view::npos;
}

}  // namespace

std::vector<Ort::Value> Session::run(const Ort::RunOptions& run_options, const RunInputs& inputs,
                                     const std::vector<const char*>& output_names) {
  std::vector<Ort::Value> outputs;
  outputs.reserve(output_names.size());
  for (std::size_t i = 0; i < output_names.size(); ++i) {
    outputs.emplace_back(nullptr);
  }
  const auto lock = lock_for_use();
  const OrtRunOptions* given = run_options;
  const Ort::RunOptions& chosen = given == nullptr ? live_->run_options : run_options;
  const Ort::Value* const values = inputs.values();
  std::uint64_t shapes = no_shapes;
  if (device().is_cuda()) {
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      shapes = add_shape(shapes, values[i]);
    }
  }
  const auto run = [&] {
    run_with_retries(lock, shapes, [&] {
      live_->session.Run(chosen, inputs.names().data(), values, inputs.size(), output_names.data(), outputs.data(),
                         outputs.size());
    });
  };
  try {
    call(std::ref(run));
  } catch (const Error& error) {
    rethrow_with_unequal_sizes(error, this->inputs(), inputs);
  }
  if (device().is_cuda()) {
    give_inputs_back(inputs, output_names, outputs);
  }
  return outputs;
}

void Session::call(const std::function<void()>& run) {
  // A CUDA graph of ONNX Runtime's own, as TensorRT's, belongs to the thread that captured it.
  if (!device().is_cuda() || !description_->may_run_unasked) {
    run();
  } else if (!caller_threads_.call(run)) {
    throw closed_error();
  }
}

void Session::use_guarded(bool runs, std::uint64_t shapes, bool alone, const std::function<void()>& work) const {
  const MindsNoCaptures mode(CudaStartup::instance().driver());
  const bool may_free = compute_stream_ == nullptr;
  PlannedShapes::Run planned(live_->planned, shapes);
  std::optional<DeviceUse> use;
  std::uint64_t ended = 0;
  for (bool begun = false; !begun;) {
    using Work = DeviceSyncGuard::Work;
    use.reset();
    ended = DeviceUse::ended_threads();
    const bool frees = may_free && live_->ended_threads.load() != ended;
    const bool makes_plans = planned.makes_plans();
    planned.guard.reset();
    if (alone || (frees && makes_plans)) {
      planned.guard = std::make_shared<const DeviceSyncGuard>(device(), Work::both);
    } else if (frees || makes_plans) {
      planned.guard =
          std::make_shared<const DeviceSyncGuard>(device(), frees ? Work::waits_for_device : Work::may_capture);
    }
    if (may_free) {
      use.emplace(device());
    }
    // Else a thread ended, or a run with other shapes began, while this one waited.
    begun = (frees || !may_free || DeviceUse::ended_threads() == ended) && planned.begin();
  }
  work();
  planned.succeeded();
  if (may_free && runs) {  // to bind inputs may use nothing
    DeviceUse::ran();
    live_->ended_threads.store(ended);
  }
}

void Session::run_guarded(const Lock& open, std::uint64_t shapes, bool alone, const auto& run) const {
  const auto weights = hold_weights(open);
  if (device().is_cuda()) {
    use_guarded(true, shapes, alone, [&] { run_checked(run); });
  } else {
    run_checked(run);
  }
}

void Session::run_with_retries(const Lock& open, std::uint64_t shapes, const auto& run) const {
  using Shrinks = LiveSession::Shrinks;
  const bool idle = live_->runs.load() == 0;
  Shrinks wanted = live_->shrinks.load();
  if ((wanted == Shrinks::in_next_run || (wanted == Shrinks::once_idle && idle)) &&
      live_->shrinks.compare_exchange_strong(wanted, idle ? Shrinks::no : Shrinks::once_idle)) {
    shrink();
  }
  ++live_->runs;
  const ScopeExit ended([this] { --live_->runs; });
  bool alone = false;
  // ONNX Runtime's check of a kernel may find the error of the one before: twice.
  const Retry lost_capture{
      .concerns = may_have_lost_capture, .times = 2, .prepare = [&alone](std::size_t) { alone = true; }};
  with_retries({device_memory::lack(device()), lost_capture}, [&] { run_guarded(open, shapes, alone, run); });
}

void Session::run_checked(const auto& run) const {
  try {
    run();
  } catch (const Ort::Exception& exception) {
    throw with_device_memory(from_onnxruntime(exception, "running " + model() + " on " + to_string(device()),
                                              advice_on_inputs(inputs(), exception.what())),
                             device());
  }
}

void Session::run(const Lock& open, const Ort::RunOptions& run_options, const Ort::IoBinding& binding,
                  std::uint64_t shapes) const {
  const OrtRunOptions* given = run_options;
  run_with_retries(open, shapes,
                   [&] { live_->session.Run(given == nullptr ? live_->run_options : run_options, binding); });
}

void Session::run_to_capture(const Lock& /*open*/, const WeightStore::Hold& /*weights*/,
                             const Ort::RunOptions& run_options, const Ort::IoBinding& binding) const {
  run_checked([&] { live_->session.Run(run_options, binding); });
}

}  // namespace ortmulti
