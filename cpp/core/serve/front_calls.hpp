#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>

#include "core/base/async_runs.hpp"
#include "core/base/hand_over_queue.hpp"
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
  explicit FrontShared(Front::Options given);

  Front::Options options;
  const std::string authorization;  ///< Empty: none is needed.
  Admission admission;
  BufferPool buffers;
  const std::size_t most_others;
  std::atomic<std::size_t> others{0};     ///< Calls that `other` has.
  std::atomic<Loop::Clock::rep> busy{0};  ///< When the last infer came.
  ServedModels models;
  AsyncRuns workers;  ///< Read and write long JSON.
  std::atomic<bool> ready{false};
  AnswerCounts answers;
  HandOverQueue<Front::Access> access_log;
};

/// The call, which keeps what it needs as long as anybody has it.
std::shared_ptr<Call> kept(std::shared_ptr<const FrontShared> shared, std::shared_ptr<Call> call);

/// The calls of one loop: routes them, and brings their answers back. All functions but begin() are called by the
/// loop's thread.
class FrontCalls : public Router, public Loop::Owner, NonCopyable {
 public:
  /// Throws Error where it cannot serve TLS as asked.
  FrontCalls(std::shared_ptr<FrontShared> shared, Protocol protocol);
  Protocol protocol() const noexcept { return protocol_; }
  /// Called before the loop starts.
  void attach(Loop& loop);

  std::unique_ptr<Reply> begin(Call& call) override;
  void finish(std::shared_ptr<Call> call) override;
  void answered_itself(int status) noexcept override { shared_->answers.add(protocol_, status); }
  void gone(const std::shared_ptr<Call>& call) override;

  std::unique_ptr<Connection> connect(std::string peer, std::uint64_t number, Loop::Clock::time_point now) override;
  void finished(Requests requests) override;
  void cut_off() override;
  void quiet() override;

  /// The answer of `other`. Of a call that is not under way any more: nothing.
  void reply(const std::shared_ptr<Call>& call, Reply reply);

 private:
  /// Answers the call where it fails.
  void attempt(const std::shared_ptr<Call>& call, const std::function<void()>& work);

  enum class Where : std::uint8_t { here, other };
  struct UnderWay {
    std::shared_ptr<Call> call;
    std::shared_ptr<InferRequest> request;  // null: a worker reads it, or it is `other`'s
    Where where = Where::here;
    Loop::Clock::time_point since;
  };
  using CallsUnderWay = std::unordered_map<const Call*, UnderWay>;

  void route(const std::shared_ptr<Call>& call);
  void infer(const std::shared_ptr<Call>& call);
  void begun(const std::shared_ptr<Call>& call, Begun begun);
  void finished(const std::shared_ptr<Request>& finished);
  /// None: Python is to answer.
  void written(const std::shared_ptr<Call>& call, std::optional<Reply> reply);
  void hand_over(const std::shared_ptr<Call>& call);
  UnderWay& note(const std::shared_ptr<Call>& call);
  void answer(const std::shared_ptr<Call>& call, Reply reply);
  void send(const std::shared_ptr<Call>& call, Reply reply);
  UnderWay forget(const CallsUnderWay::iterator& found);
  void count(const Call& call, const Reply& reply, Loop::Clock::duration took);
  /// Whether a worker will do the work, and then have this loop do what it returns.
  bool in_worker(std::function<Mailbox::Task()> work);

  const std::shared_ptr<FrontShared> shared_;
  const Protocol protocol_;
  std::shared_ptr<const TlsContext> tls_;  // null: connections are plain
  Loop* loop_ = nullptr;
  std::shared_ptr<Receiver> receiver_;
  CallsUnderWay under_way_;
};

}  // namespace ortmulti::serve
