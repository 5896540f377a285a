#pragma once

#include <onnxruntime_cxx_api.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/base/mutex.hpp"
#include "core/pool/pool.hpp"
#include "core/pool/request.hpp"

namespace ortmulti {

/// A model that takes tokens: its inputs, and how a row is made of its output.
struct TokenModel {
  enum class Kind : std::uint8_t { ids, mask, types, positions };
  enum class Pooling : std::uint8_t { cls, last, max, mean, mean_sqrt_len, weightedmean };
  struct Input {
    std::string name;
    Kind kind = Kind::ids;
    ONNXTensorElementDataType type = ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64;  ///< This, or int32.
  };

  std::vector<Input> inputs;
  std::string output;
  std::vector<Pooling> pooling;  ///< What a row has of each token's vector, one behind another. Empty: no tokens'.
};

/// Runs of a model, each of one text's tokens, whose answers are rows of one table. One thread fills and submits it;
/// any may cancel it.
class TokenRows : public Receiver, public std::enable_shared_from_this<TokenRows> {
 public:
  using Clock = Request::Clock;
  struct Tokens {
    std::vector<std::int64_t> ids;    ///< One at least.
    std::vector<std::int64_t> types;  ///< As many; empty: all are 0.
  };

  /// `skip`: so many tokens at the beginning of each are not pooled.
  TokenRows(std::shared_ptr<const TokenModel> model, std::size_t skip);

  /// Makes the requests, before any other call but cancel(). `apply` says how they run.
  void fill(std::vector<Tokens> all, const std::function<void(Request&)>& apply);
  /// Submits what is left, the longest first. False: there was no room until then. Throws as Pool::submit: then it may
  /// be called again, with another pool.
  bool submit(const std::shared_ptr<Pool>& pool, const std::optional<Clock::time_point>& wait_until);
  /// Runs the only one in this thread, if a session is idle.
  bool run_here(Pool& pool, bool interruptible);
  /// Fails what is not submitted.
  void fail(const std::exception_ptr& error);
  void cancel();

  std::size_t count() const noexcept { return lengths_.size(); }
  /// The number of rows that are not submitted yet. Only the thread that submits may call this.
  std::size_t left() const noexcept { return waiting_.size(); }
  /// The number of tokens of each.
  const std::vector<std::size_t>& lengths() const noexcept { return lengths_; }

  // For a row with which answered() was called: the table, and the first error of these rows.
  float* table() noexcept;
  std::optional<std::exception_ptr> error_of(std::size_t first, std::size_t count) noexcept;

  // Once all are answered. A row without an answer has no particular values.
  std::size_t width() const noexcept { return width_; }
  std::unique_ptr<float[]> take_table() noexcept { return std::move(table_); }  // NOLINT(modernize-avoid-c-arrays)
  /// The rows that failed, in order. An error is null if cancel() was called. Rows that were never filled have one
  /// entry.
  const std::vector<std::pair<std::size_t, std::exception_ptr>>& errors() const noexcept { return errors_; }

  void receive(Requests finished) noexcept override;

 protected:
  /// These have a row or an error now. Called before complete(), in whichever thread; not where fill() was not.
  virtual void answered(const std::vector<std::size_t>& /*rows*/) noexcept {}
  /// All are answered. Called once, in whichever thread.
  virtual void complete() noexcept = 0;

 private:
  class OneRequest;

  bool cancelled();
  void answer(OneRequest& request) noexcept;
  void write(const OneRequest& request);
  float* row(std::size_t index, std::size_t width);
  void add_error(std::size_t index, std::exception_ptr error) noexcept;
  void end(const std::vector<std::size_t>& rows) noexcept;

  const std::shared_ptr<const TokenModel> model_;
  const std::size_t skip_;
  std::vector<std::size_t> lengths_;
  std::vector<std::shared_ptr<OneRequest>> waiting_;  // to be submitted, the shortest first
  std::atomic<std::size_t> left_{0};
  Mutex mutex_;
  std::vector<std::pair<std::weak_ptr<Request>, std::weak_ptr<Pool>>> submitted_ ORTMULTI_GUARDED_BY(mutex_);
  bool cancelled_ ORTMULTI_GUARDED_BY(mutex_) = false;
  // Written under the lock until all are answered.
  std::unique_ptr<float[]> table_;  // NOLINT(modernize-avoid-c-arrays): not to be filled with zeros
  std::size_t width_ = 0;
  std::vector<std::pair<std::size_t, std::exception_ptr>> errors_;
};

/// Brings each row of a table to the length 1.
void normalize_rows(std::span<float> table, std::size_t width) noexcept;

}  // namespace ortmulti
