#include "bindings/pool_runners.hpp"

#include <exception>
#include <string>
#include <system_error>
#include <thread>

#include "bindings/gil.hpp"
#include "bindings/pool_request.hpp"
#include "core/base/error.hpp"
#include "core/pool/gpu_runner.hpp"
#include "core/pool/session_runner.hpp"

namespace py = pybind11;

namespace ortmulti::bindings {
namespace {

using Requests = std::vector<std::shared_ptr<PoolRequest>>;

struct Warming {
  std::shared_ptr<Runner> runner;
  Requests requests;
  std::exception_ptr error;
  std::thread thread;

  void run(int runs, Timeline* timeline) {
    const std::string device = to_string(runner->device());
    const ScopedSpan span(timeline, "warm up", device);
    try {
      for (const auto& request : requests) {
        for (int i = 0; i < runs; ++i) {
          runner->run(*request);
        }
      }
    } catch (...) {
      error = std::current_exception();
    }
  }
};

}  // namespace

std::vector<std::shared_ptr<Runner>> make_runners(const std::shared_ptr<Session>& session, int in_flight,
                                                  std::size_t max_graphs, int runs_at_once) {
  if (!session->device().is_cuda()) {
    return {freed_without_gil<Runner>(std::make_shared<SessionRunner>(session))};
  }
  const auto shared = std::make_shared<GpuSession>(session, GpuSession::Options{max_graphs != 0, runs_at_once});
  std::vector<std::shared_ptr<Runner>> runners;
  runners.reserve(static_cast<std::size_t>(in_flight));
  for (int i = 0; i < in_flight; ++i) {
    runners.push_back(freed_without_gil<Runner>(std::make_shared<GpuRunner>(shared, max_graphs)));
  }
  return runners;
}

void warm_up(const std::shared_ptr<Session>& session, const std::vector<std::shared_ptr<Runner>>& runners,
             const py::list& feeds, int runs, const std::shared_ptr<Timeline>& timeline,
             const py::object& run_options) {
  if (feeds.empty()) {
    return;
  }
  std::vector<Warming> all(runners.size());
  for (std::size_t i = 0; i < runners.size(); ++i) {
    all[i].runner = runners[i];
    for (const py::handle feed : feeds) {
      all[i].requests.push_back(std::make_shared<PoolRequest>(
          session, py::none(), py::reinterpret_borrow<py::object>(feed), run_options, ""));
    }
  }
  const ReleaseGil nogil;
  for (Warming& one : all) {
    try {
      one.thread = std::thread(&Warming::run, &one, runs, timeline.get());
    } catch (const std::system_error&) {
      one.run(runs, timeline.get());  // the system gives no further thread: one after another, then
    }
  }
  for (Warming& one : all) {
    if (one.thread.joinable()) {
      one.thread.join();
    }
  }
  for (const Warming& one : all) {
    if (one.error) {
      std::rethrow_exception(one.error);
    }
  }
}

}  // namespace ortmulti::bindings
