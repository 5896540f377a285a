#pragma once

#include <pybind11/pybind11.h>

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "bindings/run_request.hpp"
#include "core/pool/request.hpp"

namespace ortmulti::bindings {

/// A pool's request of Python values, which it keeps. Whoever frees it need not have the GIL.
class PoolRequest : public Request {
 public:
  /// `wanted`: names of outputs, or None; `device_name`: "" for any. Throws Error for what the session does not take.
  /// Without a session the values are converted by prepare(), once there is one. Needs the GIL, as the next.
  PoolRequest(std::shared_ptr<Session> session, const pybind11::object& wanted, const pybind11::object& feed,
              const pybind11::object& options, const std::string& device_name);
  ~PoolRequest() override;
  PoolRequest(const PoolRequest&) = delete;
  PoolRequest& operator=(const PoolRequest&) = delete;

  void prepare(const std::shared_ptr<Session>& session) override;

  pybind11::list take_results();

  /// Lets its run be ended, unless it has the caller's own run options.
  void make_endable();

  /// Called when it is finished, with the GIL, by the thread that delivers completions: future, results, exception,
  /// whether it was cancelled.
  void tell(pybind11::object future, pybind11::object complete);

 private:
  struct Python {
    std::shared_ptr<Session> session;  // whose declarations the values were checked against
    std::optional<RunRequest> values;
    pybind11::object wanted;  // until there is a session, as the next
    pybind11::object feed;
    pybind11::object future;
    pybind11::object complete;
  };

  void convert(std::shared_ptr<Session> session, const pybind11::object& wanted, const pybind11::object& feed);
  void deliver() noexcept;

  std::shared_ptr<const Ort::RunOptions> given_options_;
  std::unique_ptr<Python> python_;
};

/// Lets a thread wait for a request that it submitted.
class Arrival {
 public:
  static std::shared_ptr<Arrival> of(Request& request);
  /// Whether it is finished; waits at most `timeout`.
  bool wait(std::chrono::milliseconds timeout);

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool arrived_ = false;
};

}  // namespace ortmulti::bindings
