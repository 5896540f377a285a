#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>

#include "core/base/non_copyable.hpp"
#include "core/serve/front_shared.hpp"
#include "core/serve/infer.hpp"
#include "core/serve/loop.hpp"

namespace ortmulti::serve {

/// The calls of one loop: routes them, and brings their answers back. All functions but begin() are called by the
/// loop's thread.
class FrontCalls : public Router, public Loop::Owner, NonCopyable {
 public:
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
  bool tidy() override;

  /// The answer of `other`. Of a call that is not under way any more: nothing.
  void reply(const std::shared_ptr<Call>& call, Reply reply);

 private:
  /// Answers the call where it fails.
  void attempt(const std::shared_ptr<Call>& call, const std::function<void()>& work);

  enum class Where : std::uint8_t { here, other };
  struct UnderWay {
    std::shared_ptr<Call> call;
    std::shared_ptr<InferRequest> request;  // null: a worker reads or writes it, or it is `other`'s
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
  /// Takes the reply if its client wants it so.
  std::optional<Call::Plain> to_be_compressed(Call& call, Reply& reply) const;
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
  Loop* loop_ = nullptr;
  std::shared_ptr<Receiver> receiver_;
  CallsUnderWay under_way_;
};

}  // namespace ortmulti::serve
