// What a session can do besides running.
#include <cstddef>
#include <utility>

#include "core/ort/api_compat.hpp"
#include "core/ort/checked.hpp"
#include "core/ort/session.hpp"

namespace ortmulti {

void Session::run_later(AsyncRuns::Run run) {
  static_cast<void>(lock_for_use());
  const int threads = device().is_cuda() ? 1 : options().intra_op_num_threads;
  try {
    async_runs_.push(std::move(run), static_cast<std::size_t>(threads > 1 ? threads : 1));
  } catch (const Error& error) {
    throw error.kind() == ErrorKind::closed ? closed_error() : error;
  }
}

std::string Session::end_profiling() {
  const auto lock = lock_for_use();
  return checked("ending the profile of " + model(), [this]() -> std::string {
    const Ort::AllocatorWithDefaultOptions allocator;
    return live_->session.EndProfilingAllocated(allocator).get();
  });
}

std::uint64_t Session::profiling_start_time_ns() {
  const auto lock = lock_for_use();
  return live_->session.GetProfilingStartTimeNs();
}

std::optional<Session::Placement> Session::placement() {
  const auto lock = lock_for_use();
  const auto api = ort_api_compat::placement_api();
  if (!api) {
    return std::nullopt;
  }
  const auto on_device = [&](ort_api_compat::MemoryInfoOfValues ask, std::size_t count) {
    std::vector<const OrtMemoryInfo*> infos(count, nullptr);
    Ort::ThrowOnError(ask(live_->session, infos.data(), infos.size()));
    std::vector<bool> result;
    result.reserve(count);
    for (const OrtMemoryInfo* info : infos) {
      result.push_back(info != nullptr && device_of(Ort::ConstMemoryInfo(info)).is_cuda());
    }
    return result;
  };
  return checked("asking where inputs and outputs of " + model() + " lie", [&] {
    return Placement{.inputs_on_device = on_device(api->for_inputs, inputs().size()),
                     .outputs_on_device = on_device(api->for_outputs, outputs().size())};
  });
}

std::vector<std::string> Session::nodes_on_cpu() {
  const auto lock = lock_for_use();
  const auto api = ort_api_compat::assignment_api();
  if (!api || !is_on(options(), record_assignment)) {
    return {};
  }
  const auto text = [](auto ask, const auto* of) {
    const char* characters = nullptr;
    Ort::ThrowOnError(ask(of, &characters));
    return std::string(characters);
  };
  return checked("asking which nodes of " + model() + " are on the CPU", [&] {
    std::vector<std::string> found;
    const OrtEpAssignedSubgraph* const* parts = nullptr;
    std::size_t part_count = 0;
    Ort::ThrowOnError(api->parts(live_->session, &parts, &part_count));
    for (std::size_t part = 0; part < part_count; ++part) {
      const OrtEpAssignedNode* const* nodes = nullptr;
      std::size_t count = 0;
      Ort::ThrowOnError(api->nodes(parts[part], &nodes, &count));
      if (text(api->provider, parts[part]) != "CPUExecutionProvider") {
        continue;
      }
      for (std::size_t node = 0; node < count; ++node) {
        found.push_back(text(api->operator_type, nodes[node]) + " \"" + text(api->name, nodes[node]) + '"');
      }
    }
    return found;
  });
}

void Session::set_provider_options(const std::map<std::string, std::string>& options) {
  const auto lock = lock_for_use();
  const OptionTexts texts(options);
  checked("setting options of the providers of " + model(),
          [&] { live_->session.SetEpDynamicOptions(texts.keys.data(), texts.values.data(), texts.keys.size()); });
}

void Session::release_captured_graph(int annotation_id) {
  const auto lock = lock_for_use();
  const auto release = ort_api_compat::session_release_captured_graph();
  checked("releasing a captured graph of " + model(),
          [&] { Ort::ThrowOnError(release(live_->session, annotation_id)); });
}

}  // namespace ortmulti
