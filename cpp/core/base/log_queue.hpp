#pragma once

#include <cstdint>
#include <string>

#include "core/base/hand_over_queue.hpp"

namespace ortmulti {

struct LogRecord {
  int severity;  ///< ONNX Runtime's: 0 verbose, 1 info, 2 warning, 3 error, 4 fatal.
  std::string category;
  std::string logger;    ///< The session's logid.
  std::string location;  ///< File, line and function inside ONNX Runtime.
  std::string message;
  std::int64_t time_ns = 0;  ///< When it was said, on the steady clock.
  std::int64_t thread = 0;   ///< Who said it: the kernel's number of the thread.
};

/// ONNX Runtime's log on its way to whoever reads it.
struct LogQueue : HandOverQueue<LogRecord> {
  LogQueue() : HandOverQueue(8192) {}
};

}  // namespace ortmulti
