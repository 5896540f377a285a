#pragma once

#include <onnxruntime_cxx_api.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "core/base/device.hpp"
#include "core/base/timeline.hpp"
#include "core/ort/value.hpp"
#include "core/pool/padding.hpp"

namespace ortmulti {

class Request;
class Session;
struct Suspicion;

using Requests = std::vector<std::shared_ptr<Request>>;

/// Stands for the first request of a lower priority, in a search.
struct LowerPriority {
  std::int64_t than;
};

/// The order of what waits.
struct GoesBefore {
  using is_transparent = void;
  bool operator()(const std::shared_ptr<Request>& one, const std::shared_ptr<Request>& other) const noexcept;
  bool operator()(const std::shared_ptr<Request>& one, const LowerPriority& lower) const noexcept;
  bool operator()(const LowerPriority& lower, const std::shared_ptr<Request>& one) const noexcept;
};

using RequestQueue = std::set<std::shared_ptr<Request>, GoesBefore>;

/// The outputs of a joint run, in whose memory each request has its rows one behind another.
struct JointOutputs {
  struct Tensor {
    ONNXTensorElementDataType type;
    std::vector<std::int64_t> shape;  ///< Rows are along the first dimension.
    const std::byte* data;
    std::size_t row_bytes;
  };
  std::vector<Tensor> tensors;
  std::vector<Ort::Value> values;  ///< What they lie in.
};

/// A request's rows of them.
struct JointRows {
  std::shared_ptr<const JointOutputs> outputs;
  std::size_t first = 0;
  std::size_t count = 0;
};

/// Receives finished requests. Requests of one joint run that have the same receiver come in one call.
class Receiver {
 public:
  virtual ~Receiver() = default;

  /// Called by the thread that answered, failed or cancelled the requests. It must not wait for the pool.
  virtual void receive(Requests finished) noexcept = 0;
};

/// One run that a pool is asked for. Who asks fills in the question and hands it over; the answer may be read once
/// `receiver` has it.
class Request {
 public:
  using Clock = std::chrono::steady_clock;
  enum class Outcome { pending, done, failed, cancelled };

  virtual ~Request() = default;

  /// Called by the runner before it runs, for requests that were made before there was a session: fills in names and
  /// inputs as this session has them. Throws what is wrong with the question.
  virtual void prepare(const std::shared_ptr<Session>& /*session*/) {}

  // The question. Names and the inputs' memory are kept by whoever keeps the request.
  RunInputs inputs;
  std::vector<const char*> output_names;
  /// Null: the session's own. Where they are the request's own, what runs can be ended.
  const Ort::RunOptions* run_options = nullptr;
  std::optional<Ort::RunOptions> own_run_options;
  std::optional<Device> device;    ///< Only there; else wherever a session is free.
  bool outputs_on_device = false;  ///< Else they are the host's.
  bool takes_rows = false;         ///< Small outputs of a joint run may be given as rows, not yet copied.
  bool endable = false;            ///< It gets run options of its own, where there are none, so that it can be ended.
  std::uint64_t caller = 0;        ///< Who asks: requests of one whose requests fail run alone. 0: nobody knows.
  RequestTrace trace;              ///< Gets the request's spans.
  std::optional<Clock::time_point> deadline;
  /// Gets the request once, when it is answered, failed or cancelled, unless it runs in the caller's thread.
  std::shared_ptr<Receiver> receiver;

  // The answer.
  Outcome outcome = Outcome::pending;
  std::vector<Ort::Value> outputs;  ///< One for each name, where done.
  JointRows rows;                   ///< Instead, where it takes rows: small, to be copied soon.
  /// What an output's memory belongs to, where that is not its own; empty, or one for each.
  std::vector<std::shared_ptr<const void>> output_owners;
  std::exception_ptr error;  ///< Where failed or cancelled.
  bool has_outputs() const noexcept { return !outputs.empty() || rows.outputs; }
  void clear_outputs() noexcept {
    outputs.clear();
    rows = {};
  }
  Device ran_on;
  Clock::time_point submitted;  ///< When it was handed over: before any wait for room in the queue.
  Clock::time_point assigned;   ///< When a session took it last, perhaps to wait for others to join; with batching.
  Clock::time_point started;    ///< When its last run began.
  Clock::time_point ended;
  std::chrono::nanoseconds copying{0};              ///< Part of that: inputs and outputs, by the runner.
  std::chrono::nanoseconds waiting_for_session{0};  ///< Part of that: until another run had ended.
  std::size_t run_size = 1;                         ///< How many requests its last run had.

  std::atomic<bool> ending{false};  ///< The run shall end. Set before the runner is notified.
  bool by_graph = false;            ///< Its last run was a CUDA graph's.

  int priority = 0;  ///< Of what waits, higher ones begin first. Here, beside what else decides whose turn it is.

 private:
  friend class DeviceGroup;
  friend class Pool;
  friend struct GoesBefore;

  /// Requests without a deadline have their turn among others as if it were so late: else those would keep them waiting
  /// for ever.
  static constexpr std::chrono::minutes without_deadline{1};

  /// Whether it is this one's turn before that of the other, where both wait. What comes back was asked for before the
  /// others, and goes first whatever else counts: the search for a request relies on it.
  bool goes_before(const Request& other) const noexcept {
    if (retried_ || other.retried_) {
      return retried_ == other.retried_ ? number_ < other.number_ : retried_;
    }
    if (priority != other.priority) {
      return priority > other.priority;
    }
    return due_ == other.due_ ? number_ < other.number_ : due_ < other.due_;
  }
  /// Neither cancelled nor past its deadline.
  bool wanted() const noexcept { return !unwanted_ && !given_up_; }

  bool retried_ = false;   // a session had it before it waited
  bool unwanted_ = false;  // cancelled while it ran
  // Its deadline passed during its run, and its receiver has it. The run goes on with its inputs, or ends between two
  // nodes, and writes its answer: nobody may read that.
  bool given_up_ = false;
  Clock::time_point due_;     // its deadline, or what stands for it
  std::uint64_t number_ = 0;  // in the order in which they began to wait

  enum class Place { nowhere, waiting, running, finished };
  Place place_ = Place::nowhere;
  void* worker_ = nullptr;  // that has it, while running
  JointSize size_;
  std::string batch_key_;                 // empty: it runs alone
  std::shared_ptr<Suspicion> suspicion_;  // its failed run's, while it is tried elsewhere
  // How its last run failed. Kept until the request is freed: an error may be Python's, and no lock is held then.
  std::exception_ptr run_error_;
  RequestQueue::iterator position_;  // while it waits
  std::optional<std::multimap<Clock::time_point, std::weak_ptr<Request>>::iterator> timer_;
};

inline bool GoesBefore::operator()(const std::shared_ptr<Request>& one,
                                   const std::shared_ptr<Request>& other) const noexcept {
  return one->goes_before(*other);
}

inline bool GoesBefore::operator()(const std::shared_ptr<Request>& one, const LowerPriority& lower) const noexcept {
  return one->retried_ || one->priority >= lower.than;
}

inline bool GoesBefore::operator()(const LowerPriority& lower, const std::shared_ptr<Request>& one) const noexcept {
  return !(*this)(one, lower);
}

}  // namespace ortmulti
