#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/base/mutex.hpp"
#include "core/base/non_copyable.hpp"
#include "core/pool/token_rows.hpp"
#include "core/serve/front.hpp"
#include "core/serve/vector_request.hpp"

namespace ortmulti::serve {

class VectorCalls;

/// What is made of rows, and written around them.
struct VectorForm {
  std::string name;            ///< The model's.
  bool normalize = true;       ///< Vectors get the length 1.
  std::size_t dimensions = 0;  ///< So many first elements of each; 0: all.
  Headers headers;
  std::string head, tail;                     ///< Of an answer. A zero byte stands for the number of its texts' tokens.
  std::string before, behind_number, behind;  ///< Around each row, see JsonRows.
};

/// Requests that want the same, whose texts are run together.
class VectorGroup : NonCopyable {
 public:
  struct Member {
    std::shared_ptr<Call> call;
    std::size_t first = 0;  ///< Of its texts.
    std::size_t texts = 0;
    std::atomic<std::size_t> left = 0;  ///< Of these, those without an answer.
  };

  VectorGroup(std::shared_ptr<VectorCalls> calls, VectorWish wish) : calls_(std::move(calls)), wish_(std::move(wish)) {}

  const VectorWish& wish() const noexcept { return wish_; }
  /// Gives away the texts, those of one request behind those of another. May be called once.
  std::vector<std::string> take_texts() noexcept { return std::move(texts_); }
  /// Counts the memory of the answers. False: some have none.
  bool reserve(std::size_t bytes_a_text);
  /// Has each request answered alone, by Python.
  void leave();
  /// Has the rows cancelled when nobody waits for any of the answers.
  void run_by(const std::shared_ptr<TokenRows>& rows);
  /// Has a thread of the server's do it.
  void work(const std::function<void()>& task);
  /// Notes that these texts are answered. Returns the numbers of requests that have no others.
  std::vector<std::size_t> note(const std::vector<std::size_t>& texts);
  /// Answers these requests. Changes their rows.
  void answer(const std::vector<std::size_t>& members, TokenRows& rows, const VectorForm& form);
  /// Answers all that wait with an error.
  void fail(const std::exception_ptr& error);

 private:
  friend class VectorCalls;

  void answer(const Member& member, TokenRows& rows, const VectorForm& form);
  void write(std::span<float> numbers, std::size_t width, const Member& member, std::size_t tokens,
             const VectorForm& form);

  const std::shared_ptr<VectorCalls> calls_;
  const VectorWish wish_;
  std::vector<std::string> texts_;
  std::deque<Member> members_;
  // The lock of calls_ guards these.
  std::size_t left_ = 0;
  std::weak_ptr<TokenRows> rows_;
};

/// Short requests of vectors. Those that are there at the same moment, and want the same, are one group. Any thread may
/// call these.
class VectorCalls : public std::enable_shared_from_this<VectorCalls>, NonCopyable {
 public:
  struct Python {
    std::function<void(std::shared_ptr<Call>)> ask;                       ///< Answers a call.
    std::function<void(std::shared_ptr<Call>, std::exception_ptr)> fail;  ///< Answers it with an error.
  };
  /// Counts of what was answered.
  struct Counts {
    std::uint64_t texts = 0;
    std::uint64_t tokens = 0;
  };

  explicit VectorCalls(Python python) : python_(std::move(python)) {}

  /// Where answers go, until close().
  void open(Front& front);
  /// False: it is none of these.
  bool add(const std::shared_ptr<Call>& call);
  /// Nobody waits for its answer. False: it is none of these, or is not any more.
  bool gone(const Call& call);
  /// Waits for some. At most so many texts; a request that has more is Python's. Null after close().
  std::shared_ptr<VectorGroup> take(std::size_t most);
  void close();
  /// Has a worker of the server do it, where there is one.
  void work(const std::function<void()>& task);
  /// By model.
  std::map<std::string, Counts> counts() const;

 private:
  friend class VectorGroup;
  struct Waiting {
    std::shared_ptr<Call> call;
    AskedVectors asked;
  };

  /// Whether it waited for an answer until now.
  bool forget(const Call& call);
  bool forget_locked(const Call& call) ORTMULTI_REQUIRES(mutex_);
  void reply(const std::shared_ptr<Call>& call, Reply reply, const std::string& model, const Counts& counts);

  const Python python_;
  mutable Mutex mutex_;
  Condition changed_;
  Front* front_ ORTMULTI_GUARDED_BY(mutex_) = nullptr;
  bool closed_ ORTMULTI_GUARDED_BY(mutex_) = false;
  std::deque<Waiting> waiting_ ORTMULTI_GUARDED_BY(mutex_);
  std::unordered_map<const Call*, std::shared_ptr<VectorGroup>> known_ ORTMULTI_GUARDED_BY(mutex_);  // null: it waits
  std::map<std::string, Counts> counts_ ORTMULTI_GUARDED_BY(mutex_);
};

}  // namespace ortmulti::serve
