#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "core/base/async_runs.hpp"
#include "core/base/hand_over_queue.hpp"
#include "core/base/mutex.hpp"
#include "core/base/non_copyable.hpp"
#include "core/serve/front.hpp"
#include "core/serve/infer.hpp"
#include "core/serve/loop.hpp"
#include "core/serve/tls.hpp"

namespace ortmulti::serve {

/// Counts of answers. Any thread may use it.
class AnswerCounts : NonCopyable {
 public:
  void add(Protocol protocol, int http_status) noexcept;
  std::map<std::pair<std::string, std::string>, std::uint64_t> all() const;

 private:
  std::array<std::atomic<std::uint64_t>, 600> http_{};
  std::array<std::atomic<std::uint64_t>, 17> grpc_{};
};

/// What the loops of a server share. Calls keep it: they count in its admission, and their bodies are its buffers'.
struct FrontShared : NonCopyable {
  /// Throws Error where TLS cannot be served as asked.
  explicit FrontShared(Front::Options given);

  /// Reads the files of TLS; new connections have what is in them. Throws Error, and then the contexts stay.
  void load_certificate();
  /// Has a worker do it. False: no thread can start.
  bool work(std::function<void()> task);
  /// Null: connections are plain.
  std::shared_ptr<const TlsContext> tls(Protocol protocol) const;

  Front::Options options;
  Admission admission;
  BufferPool buffers;
  const std::size_t most_others;
  std::atomic<std::size_t> others{0};     ///< Calls that `other` has.
  std::atomic<Loop::Clock::rep> busy{0};  ///< When the last infer came.
  ServedModels models;
  AsyncRuns workers;  ///< Read and write what takes long.
  std::atomic<bool> ready{false};
  AnswerCounts answers;
  HandOverQueue<Front::Access> access_log;

 private:
  struct Contexts {
    std::shared_ptr<const TlsContext> http, grpc;
  };
  mutable Mutex mutex_;
  Contexts tls_ ORTMULTI_GUARDED_BY(mutex_);
};

/// The call, which keeps what it needs as long as anybody has it.
std::shared_ptr<Call> kept(std::shared_ptr<const FrontShared> shared, std::shared_ptr<Call> call);

}  // namespace ortmulti::serve
