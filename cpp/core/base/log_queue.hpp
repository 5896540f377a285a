#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <string>

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

/// ONNX Runtime's log on its way to whoever reads it. Writers never wait for the reader: when it falls behind, the
/// oldest records are dropped and counted.
class LogQueue {
 public:
  explicit LogQueue(std::size_t capacity = 8192) : capacity_(capacity) {}

  void push(LogRecord record);

  /// Waits at most `timeout` for a record, and not when closed.
  void wait(std::chrono::milliseconds timeout);

  struct Taken {
    std::deque<LogRecord> records;  ///< All that there were.
    std::uint64_t dropped = 0;      ///< Since the last call.
    bool closed = false;
  };
  Taken take();

  /// Wakes a waiting reader for good.
  void close();

 private:
  const std::size_t capacity_;
  std::mutex mutex_;
  std::condition_variable filled_;
  std::deque<LogRecord> records_;
  std::uint64_t dropped_ = 0;
  bool closed_ = false;
};

}  // namespace ortmulti
