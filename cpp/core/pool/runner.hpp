#pragma once

#include <string>

#include "core/base/device.hpp"

namespace ortmulti {

class Request;

/// What runs a pool's requests, one at a time: a session, or what stands for one.
class Runner {
 public:
  Runner() = default;
  virtual ~Runner() = default;
  Runner(const Runner&) = delete;
  Runner& operator=(const Runner&) = delete;

  virtual const Device& device() const noexcept = 0;

  /// What tells a session, which several runners may share, from others.
  virtual const void* session() const noexcept { return this; }

  /// Fills in the outputs. Throws Error.
  virtual void run(Request& request) = 0;

  /// Asks that the run of this request ends, from another thread than its own. The run may have ended meanwhile.
  virtual void terminate(Request& request) noexcept = 0;

  /// Called after a run failed: why no later run on this device can succeed; empty where it can.
  virtual std::string why_broken() noexcept = 0;
};

}  // namespace ortmulti
