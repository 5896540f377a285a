#include "core/pool/runners.hpp"

#include <algorithm>
#include <exception>
#include <string>
#include <system_error>
#include <thread>

#include "core/pool/gpu_runner.hpp"
#include "core/pool/runner.hpp"

namespace ortmulti {

std::vector<std::shared_ptr<Runner>> make_runners(const std::shared_ptr<Session>& session, const Serving& serving) {
  if (!session->device().is_cuda()) {
    return {std::make_shared<SessionRunner>(session)};
  }
  const int runs_at_once = std::max(1, serving.in_flight - 1);
  const auto shared = std::make_shared<GpuSession>(session, GpuSession::Options{serving.max_graphs != 0, runs_at_once});
  std::vector<std::shared_ptr<Runner>> runners;
  runners.reserve(static_cast<std::size_t>(serving.in_flight));
  for (int i = 0; i < serving.in_flight; ++i) {
    runners.push_back(std::make_shared<GpuRunner>(shared, serving.max_graphs));
  }
  return runners;
}

void warm_up(const std::vector<WarmUp>& all, int runs, Timeline* timeline) {
  std::vector<std::exception_ptr> errors(all.size());
  const auto run = [&](std::size_t index) noexcept {
    const std::string device = to_string(all[index].runner->device());
    const ScopedSpan span(timeline, "warm up", device);
    try {
      for (const auto& request : all[index].requests) {
        for (int i = 0; i < runs; ++i) {
          all[index].runner->run(*request);
        }
      }
    } catch (...) {
      errors[index] = std::current_exception();
    }
  };
  std::vector<std::thread> threads;
  threads.reserve(all.size());
  for (std::size_t i = 0; i < all.size(); ++i) {
    try {
      threads.emplace_back(run, i);
    } catch (const std::system_error&) {
      run(i);  // one after another, then
    }
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  for (const std::exception_ptr& error : errors) {
    if (error) {
      std::rethrow_exception(error);
    }
  }
}

}  // namespace ortmulti
