#include "core/pool/runner.hpp"

#include "core/cuda/startup.hpp"
#include "core/pool/request.hpp"

namespace ortmulti {

void SessionRunner::run(Request& request) {
  static const Ort::RunOptions none{nullptr};
  request.prepare(session_);
  request.outputs.clear();
  request.outputs.reserve(request.output_names.size());
  for (std::size_t i = 0; i < request.output_names.size(); ++i) {
    request.outputs.emplace_back(nullptr);
  }
  const ScopedSpan span(request.timeline.get(), "run", device_name_);
  session_->run(request.run_options == nullptr ? none : *request.run_options, request.inputs.names().data(),
                request.inputs.values(), request.inputs.size(), request.output_names.data(), request.outputs.data(),
                request.outputs.size());
}

void SessionRunner::terminate(Request& request) noexcept {
  if (request.own_run_options) {
    try {
      request.own_run_options->SetTerminate();
    } catch (const Ort::Exception&) {  // NOLINT(bugprone-empty-catch): then the run goes on to its end
    }
  }
}

std::string SessionRunner::why_broken() noexcept {
  try {
    if (device().is_cuda()) {
      static_cast<void>(CudaStartup::instance().memory(device().index));
    }
    return {};
  } catch (const std::exception& error) {
    return error.what();
  }
}

}  // namespace ortmulti
