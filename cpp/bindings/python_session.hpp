#pragma once

#include <memory>
#include <utility>

#include "bindings/gil.hpp"
#include "core/ort/session.hpp"

namespace ortmulti::bindings {

/// A session as Python holds it. Freeing one takes time, and waits for runs that need the GIL to end.
struct PythonSession {
  explicit PythonSession(std::shared_ptr<Session> held) : session(std::move(held)) {}
  PythonSession(const PythonSession&) = delete;
  PythonSession& operator=(const PythonSession&) = delete;
  PythonSession(PythonSession&&) noexcept = default;
  PythonSession& operator=(PythonSession&&) = delete;
  ~PythonSession() {
    if (session) {
      const ReleaseGil nogil;
      session.reset();
    }
  }

  std::shared_ptr<Session> session;
};

}  // namespace ortmulti::bindings
