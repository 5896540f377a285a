#pragma once

#include <memory>

#include "core/session.hpp"

namespace ortmulti::bindings {

/// A session as Python holds it.
struct PythonSession {
  std::shared_ptr<Session> session;
};

}  // namespace ortmulti::bindings
