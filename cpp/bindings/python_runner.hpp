#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <memory>
#include <string>

#include "bindings/python_call.hpp"
#include "core/pool/runner.hpp"

namespace ortmulti::bindings {

/// Runs requests with Python code, for which it takes the GIL: with an object's `run(number, names, feed)`, which gives
/// the list of outputs, and `terminate(number)`, which has that run end, also if it is still about to begin. Runs with
/// the number 0 cannot be ended. An exception with an attribute `begun` says that the session was lost.
class PythonRunner : public Runner, public std::enable_shared_from_this<PythonRunner> {
 public:
  /// `session`: an object that tells it from the runners of others. Needs the GIL.
  PythonRunner(const pybind11::object& runner, Device device, pybind11::object session);

  const Device& device() const noexcept override { return device_; }
  const void* session() const noexcept override { return python_->session.ptr(); }
  bool uses_run_options() const noexcept override { return false; }
  void run(Request& request) override;
  /// May be called under the core's locks: Python is called by the next thread that has the GIL and calls end_runs().
  void terminate(Request& request) noexcept override;
  std::string why_broken() noexcept override { return {}; }  // the device is used in another process

 private:
  friend void end_runs();
  struct Python {
    pybind11::object run;
    pybind11::object terminate;
    pybind11::object session;
  };

  void run_joint(Request& joint, std::uint64_t number);

  std::unique_ptr<Python, WithGil> python_;
  Device device_;
};

/// Has those runs end that PythonRunner::terminate() was called for. Needs the GIL.
void end_runs();

}  // namespace ortmulti::bindings
