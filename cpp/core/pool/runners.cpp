#include "core/pool/runners.hpp"

#include <algorithm>
#include <future>
#include <string>

#include "core/base/cpu_affinity.hpp"
#include "core/cuda/startup.hpp"
#include "core/memory/device_memory.hpp"
#include "core/ort/value.hpp"
#include "core/policy/numbers.hpp"
#include "core/pool/cpu_runner.hpp"
#include "core/pool/gpu_session.hpp"
#include "core/pool/ordinary_gpu_runner.hpp"

namespace ortmulti {
namespace {

// Returns 0 for values that are no tensors of elements of a fixed size.
std::uint64_t bytes_of(const Ort::Value& value) {
  if (value == nullptr || !value.HasValue() || !value.IsTensor()) {
    return 0;
  }
  const auto info = value.GetTensorTypeAndShapeInfo();
  const ONNXTensorElementDataType type = info.GetElementType();
  return type == ONNX_TENSOR_ELEMENT_DATA_TYPE_STRING ? 0 : tensor_bytes(type, info.GetShape());
}

}  // namespace

void Runner::note_run(std::uint64_t input_bytes) noexcept {
  const std::uint64_t bytes = std::max<std::uint64_t>(input_bytes, 1);
  std::uint64_t before = largest_.load(std::memory_order_relaxed);
  while (before < bytes && !largest_.compare_exchange_weak(before, bytes, std::memory_order_relaxed)) {
  }
  if (before == 0) {
    device_memory::wake();
  }
}

void SessionRunner::run(Request& request) { run_with(session_, request); }

void SessionRunner::run_with(const std::shared_ptr<Session>& session, Request& request) {
  static const Ort::RunOptions none{nullptr};
  request.prepare(session);
  std::uint64_t bytes = 0;
  for (std::size_t i = 0; i < request.inputs.size(); ++i) {
    bytes += bytes_of(request.inputs.values()[i]);
  }
  note_run(bytes);
  note_session_run();
  request.outputs.clear();
  const ScopedSpan span(request.trace, "run", device_name_);
  request.outputs =
      session->run(request.run_options == nullptr ? none : *request.run_options, request.inputs, request.output_names);
}

void SessionRunner::terminate(Request& request) noexcept {
  if (request.own_run_options) {
    try {
      request.own_run_options->SetTerminate();
    } catch (const Ort::Exception&) {  // NOLINT(bugprone-empty-catch): then the run goes on to its end
    }
  }
}

Runner::Weights SessionRunner::weights() noexcept {
  try {
    const auto store = session_->weights(session_->lock_for_use());
    return {store.get(), store ? store->device_bytes() : 0};
  } catch (const std::exception&) {
    return {};  // it was closed
  }
}

std::optional<Session::Arena> SessionRunner::arena() noexcept {
  try {
    return session_->arena();
  } catch (const std::exception&) {
    return std::nullopt;  // there is no memory to ask with
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

namespace {

struct Runners {
  std::vector<std::shared_ptr<Runner>> all;
  std::optional<std::size_t> at_first;  // of them run at first, and are ready: as Pool::add() takes it
};

// `used` as long as anybody has the result; then `end` is called.
template <typename Used>
std::shared_ptr<Used> shared_until_last(std::shared_ptr<Used> used, void (*end)(Used&)) {
  auto* const plain = used.get();
  return {plain, [used = std::move(used), end](Used* /*plain*/) { end(*used); }};
}

// On the CPU one, or as many as measurements choose from.
Runners make_cpu_runners(const std::shared_ptr<Session>& session, const Serving& serving) {
  if (serving.in_flight != 0 || !serving.one_thread_wanted) {
    return {{std::make_shared<SessionRunner>(session)}, std::nullopt};
  }
  const auto sessions = shared_until_last<CpuSessions>(
      std::make_shared<CpuSessions>(session, serving.one_thread_wanted), [](CpuSessions& used) { used.end(); });
  Runners runners{{}, 1};
  const std::size_t most = max_in_flight_on_cpu();
  for (std::size_t i = 0; i < most; ++i) {
    runners.all.push_back(std::make_shared<CpuRunner>(sessions));
  }
  return runners;
}

// `in_flight` of them on a GPU.
Runners make_runners(const std::shared_ptr<Session>& session, const Serving& serving) {
  if (!session->device().is_cuda()) {
    return make_cpu_runners(session, serving);
  }
  const bool measured = serving.in_flight == 0;
  const std::size_t ready =
      serving.in_flight == 0 ? *numbers::in_flight_first : static_cast<std::size_t>(serving.in_flight);
  const auto shared = std::make_shared<GpuSession>(session);
  std::shared_ptr<ShapeGraphs> beside;
  if (serving.graph_wanted) {
    // Without the last runner nobody uses them: not even those that are still being made.
    beside =
        shared_until_last<ShapeGraphs>(std::make_shared<ShapeGraphs>(session, serving.graph_rule, serving.graph_wanted),
                                       [](ShapeGraphs& used) { static_cast<void>(used.drop_all()); });
  }
  Runners runners;
  for (std::size_t i = 0; i < (measured ? *numbers::in_flight_most : ready); ++i) {
    const auto runner = std::make_shared<OrdinaryGpuRunner>(shared, beside);
    if (i < ready) {
      runner->prepare();
    }
    runners.all.push_back(runner);
  }
  if (measured) {
    runners.at_first = *numbers::in_flight_first;
  }
  return runners;
}

// Returns the weights that all these sessions share. Throws Error if they cannot sleep.
std::shared_ptr<CudaWeightStore> store_of(const std::vector<std::shared_ptr<Session>>& sessions) {
  std::shared_ptr<CudaWeightStore> store;
  for (const auto& session : sessions) {
    const auto refuse = [&](const std::string& reason) {
      return Error(ErrorKind::not_implemented, "the weights of " + session->model() + " on " +
                                                   to_string(session->device()) + " cannot sleep: " + reason);
    };
    const auto weights = session->weights(session->lock_for_use());
    const auto own =
        std::const_pointer_cast<CudaWeightStore>(std::dynamic_pointer_cast<const CudaWeightStore>(weights));
    if (!own) {
      throw refuse(session->device().is_cuda() ? "the session has a copy of its own, see Pool.timeline for why"
                                               : "they are the page cache's, or the session's own; level="
                                                 "'session' closes the session");
    }
    if (!own->can_sleep()) {
      throw refuse(own->plan().base ? "they are used beside those of another session"
                                    : "the driver or the device has no virtual memory management");
    }
    if (store && own != store) {
      throw refuse("its sessions there do not share them");
    }
    store = own;
  }
  return store;
}

}  // namespace

std::shared_ptr<DeviceSleep> make_sleeper(const std::weak_ptr<Pool>& pool, const Device& device, SleepLevel level,
                                          HostCopy copy, const std::shared_ptr<Timeline>& timeline) {
  if (level != SleepLevel::weights) {
    throw Error(ErrorKind::not_implemented, "sessions that stay cannot sleep at level '" + to_string(level) + "'");
  }
  const auto find_store = [pool, device] {
    const auto held = pool.lock();
    return held ? store_of(held->sessions(device)) : nullptr;
  };
  const auto store = std::make_shared<std::shared_ptr<CudaWeightStore>>(find_store());
  auto sleeper = std::make_shared<DeviceSleep>(level);
  const auto spans = [store, timeline]() -> Timeline* {
    constexpr std::uint64_t max_in_timeline = 100;  // a pool may sleep and wake for months
    return (*store)->sleeps() <= max_in_timeline ? timeline.get() : nullptr;
  };
  sleeper->sleep = [store, find_store, copy, device, spans](Request::Clock::time_point until) {
    *store = *store ? *store : find_store();
    if (!*store) {
      throw Error(ErrorKind::closed, "the pool has no session there that could sleep: it was closed");
    }
    const ScopedSpan span(spans(), "sleep", to_string(device));
    return (*store)->sleep(copy, until);
  };
  sleeper->wake = [store, spans] { (*store)->wake(spans()); };
  return sleeper;
}

std::size_t max_in_flight_on_cpu() {
  return std::max<std::size_t>(*numbers::in_flight_most_on_cpu, 2 * static_cast<std::size_t>(usable_cores()));
}

void warm_up(const std::vector<std::shared_ptr<Runner>>& runners, const WarmUp& first) {
  if (!first.make) {
    return;
  }
  std::vector<Requests> requests;
  requests.reserve(runners.size());
  for (std::size_t i = 0; i < runners.size(); ++i) {
    requests.push_back(first.make());
  }
  std::vector<std::future<void>> ended;
  ended.reserve(runners.size());
  for (std::size_t i = 0; i < runners.size(); ++i) {
    // Without a thread it is deferred to the wait below.
    ended.push_back(std::async(std::launch::async | std::launch::deferred, [&, i] {
      const ScopedSpan span(first.timeline.get(), "warm up", to_string(runners[i]->device()));
      for (const auto& request : requests[i]) {
        for (int run = 0; run < first.runs; ++run) {
          runners[i]->run(*request);
        }
      }
    }));
  }
  for (const auto& each : ended) {
    each.wait();
  }
  for (auto& each : ended) {
    each.get();
  }
}

void add_session(Pool& pool, const std::shared_ptr<Session>& session, const Serving& serving, const WarmUp& first) {
  const Runners runners = make_runners(session, serving);
  const auto begin = runners.all.begin();
  warm_up({begin, begin + static_cast<std::ptrdiff_t>(runners.at_first.value_or(runners.all.size()))}, first);
  pool.add(runners.all, runners.at_first);
}

}  // namespace ortmulti
