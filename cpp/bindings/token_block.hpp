#pragma once

#include <pybind11/pybind11.h>

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "bindings/answers.hpp"
#include "bindings/call.hpp"
#include "core/pool/token_rows.hpp"

namespace ortmulti::bindings {

/// Texts' tokens that are run together with others, and their rows. Whoever frees it need not have the GIL.
class TokenBlock : public TokenRows, public LoopAnswer {
 public:
  using TokenRows::TokenRows;
  ~TokenBlock() override;

  /// `items`: pairs of the tokens, and of their types or None. `timeout`: in seconds, since the clock was `begin`.
  void fill(const pybind11::list& items, const Call& call, std::optional<double> timeout, double begin);

  Arrival& arrival() noexcept { return arrival_; }
  /// Once it has arrived: the table, or None, and (number, exception or None) of each row without an answer. Once.
  pybind11::tuple take();
  /// Has the object called, with the arguments of a follower's, by the thread that delivers completions. Before it is
  /// submitted.
  void follow(pybind11::object follower);
  /// The running event loop's future of the table. Before it is submitted. None if the loop does not watch yet.
  pybind11::object future();
  /// Nobody waits for it any more.
  void forget_future() { python_.future = pybind11::object(); }
  void answer_future() override;

 protected:
  void complete() noexcept override;

 private:
  struct Python {
    pybind11::object future;
    std::vector<pybind11::object> followers;
  };

  std::shared_ptr<TokenBlock> self() { return std::static_pointer_cast<TokenBlock>(shared_from_this()); }
  pybind11::object take_table();
  void deliver() noexcept;

  Arrival arrival_;
  std::shared_ptr<LoopAnswers> loop_;
  Python python_;
};

}  // namespace ortmulti::bindings
