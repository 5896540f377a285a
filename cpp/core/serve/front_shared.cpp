#include "core/serve/front_shared.hpp"

#include <algorithm>

namespace ortmulti::serve {
namespace {

constexpr std::size_t most_logged = 8192;
constexpr std::size_t most_workers = 2;
// One of so many places for requests is kept for infer, also while other requests wait for Python.
constexpr std::size_t share_of_infer = 4;
// One of so many parts of the memory for clients is kept for the next bodies.
constexpr std::size_t share_kept = 16;

constexpr std::array<const char*, 17> grpc_names{
    "OK",        "CANCELLED",      "UNKNOWN",           "INVALID_ARGUMENT",   "DEADLINE_EXCEEDED",
    "NOT_FOUND", "ALREADY_EXISTS", "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION",
    "ABORTED",   "OUT_OF_RANGE",   "UNIMPLEMENTED",     "INTERNAL",           "UNAVAILABLE",
    "DATA_LOSS", "UNAUTHENTICATED"};

// A call, and what it needs as long as anybody has it.
struct Kept {
  std::shared_ptr<const FrontShared> shared;
  std::shared_ptr<Call> call;  // freed first
};

}  // namespace

void AnswerCounts::add(Protocol protocol, int http_status) noexcept {
  const auto at = protocol == Protocol::http ? static_cast<std::size_t>(http_status)
                                             : static_cast<std::size_t>(to_grpc(http_status));
  auto& count = protocol == Protocol::http ? http_[std::min(at, http_.size() - 1)] : grpc_[at];
  count.fetch_add(1, std::memory_order_relaxed);
}

std::map<std::pair<std::string, std::string>, std::uint64_t> AnswerCounts::all() const {
  std::map<std::pair<std::string, std::string>, std::uint64_t> all;
  for (std::size_t i = 0; i < http_.size(); ++i) {
    if (const std::uint64_t count = http_[i].load(std::memory_order_relaxed); count > 0) {
      all[{"http", std::to_string(i)}] = count;
    }
  }
  for (std::size_t i = 0; i < grpc_.size(); ++i) {
    if (const std::uint64_t count = grpc_[i].load(std::memory_order_relaxed); count > 0) {
      all[{"grpc", grpc_names[i]}] = count;
    }
  }
  return all;
}

FrontShared::FrontShared(Front::Options given)
    : options(std::move(given)),
      admission(options.limits),
      buffers(options.limits.memory / share_kept),
      most_others(options.limits.concurrent - options.limits.concurrent / share_of_infer),
      access_log(most_logged) {
  load_certificate();
}

bool FrontShared::work(std::function<void()> task) {
  try {
    workers.push(
        [task = std::move(task)](bool cancelled) {
          if (!cancelled) {
            const Pool::NoWaiting by_others;
            task();
          }
        },
        most_workers);
    return true;
  } catch (const Error&) {
    return false;
  }
}

void FrontShared::load_certificate() {
  if (options.certificate.empty()) {
    return;
  }
  Contexts loaded{std::make_shared<const TlsContext>(options.certificate, options.key, "http/1.1"),
                  std::make_shared<const TlsContext>(options.certificate, options.key, "h2")};
  const MutexLock lock(mutex_);
  std::swap(tls_, loaded);  // the old ones are freed without the lock
}

std::shared_ptr<const TlsContext> FrontShared::tls(Protocol protocol) const {
  const MutexLock lock(mutex_);
  return protocol == Protocol::http ? tls_.http : tls_.grpc;
}

std::shared_ptr<Call> kept(std::shared_ptr<const FrontShared> shared, std::shared_ptr<Call> call) {
  const auto kept = std::make_shared<const Kept>(Kept{std::move(shared), std::move(call)});
  return {kept, kept->call.get()};
}

}  // namespace ortmulti::serve
