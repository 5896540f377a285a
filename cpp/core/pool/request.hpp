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

/// A key to search by: the first request of a lower priority.
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

/// The outputs of a joint run. Each request's rows lie together in their memory.
struct JointOutputs {
  struct Output {
    ONNXTensorElementDataType type;
    std::vector<std::int64_t> shape;  ///< Rows are along the first dimension.
    const std::byte* data;
    std::size_t row_bytes;
  };
  std::vector<Output> tensors;
  std::vector<Ort::Value> values;  ///< What they lie in.
};

/// A request's rows of these outputs.
struct JointRows {
  std::shared_ptr<const JointOutputs> outputs;
  std::size_t first = 0;
  std::size_t count = 0;
};

/// Receives finished requests. One call gets all requests of a joint run that have this receiver.
class Receiver {
 public:
  virtual ~Receiver() = default;

  /// Called by the thread that answered, failed or cancelled the requests. It must not wait for the pool.
  virtual void receive(Requests finished) noexcept = 0;
};

/// One run that a caller asks a pool for. The caller fills in the question and submits it. The answer may be read once
/// `receiver` has the request.
class Request {
 public:
  using Clock = std::chrono::steady_clock;
  enum class Outcome { pending, done, failed, cancelled };

  virtual ~Request() = default;

  /// Called by the runner before it runs. Fills in names and inputs as this session has them, for requests that were
  /// made before there was a session. Throws what is wrong with the question; ErrorKind::queue_full: it is not to run
  /// at all, now, which is no fault of it.
  virtual void prepare(const std::shared_ptr<Session>& /*session*/) {}

  // The question. Names and the inputs' memory are kept by whoever keeps the request.
  RunInputs inputs;
  std::shared_ptr<const std::byte> pinned_inputs;  ///< Where the inputs lie, if all are in one piece of pinned memory.
  std::vector<const char*> output_names;
  /// Null: the session's own. A run with the request's own options can be ended.
  const Ort::RunOptions* run_options = nullptr;
  std::optional<Ort::RunOptions> own_run_options;
  std::optional<Device> device;    ///< Runs only there; else on any device.
  bool outputs_on_device = false;  ///< Else they are the host's.
  bool takes_rows = false;         ///< Small outputs of a joint run may be given as rows, not yet copied.
  bool side_by_side = false;       ///< Set for each run: on the CPU it has one thread, beside others.
  bool endable = false;            ///< Gets run options of its own, so that its run can be ended.
  std::uint64_t caller = 0;        ///< Requests of a caller whose requests fail run alone. 0: unknown.
  RequestTrace trace;              ///< Gets the request's spans.
  std::optional<Clock::time_point> deadline;
  Clock::time_point
      timed_from;  ///< Since when the deadline's time counts, for messages, if that is before `submitted`.
  /// Gets the request once it is answered, failed or cancelled, unless it runs in the caller's thread.
  std::shared_ptr<Receiver> receiver;

  // The answer.
  Outcome outcome = Outcome::pending;
  std::vector<Ort::Value> outputs;  ///< One for each name, where done.
  JointRows rows;                   ///< In place of outputs, with `takes_rows`: small, to be copied soon.
  /// The owner of each output's memory, if the output does not own it; empty: all do.
  std::vector<std::shared_ptr<const void>> output_owners;
  std::exception_ptr error;  ///< Where failed or cancelled.
  void clear_outputs() noexcept {
    outputs.clear();
    rows = {};
  }
  Device ran_on;
  Clock::time_point submitted;  ///< When the caller handed it over: before any wait for room in the queue.
  Clock::time_point assigned;  ///< When a session took it last, perhaps to wait for others to join. Only with batching.
  Clock::time_point started;   ///< When its last run began.
  Clock::time_point ended;
  std::chrono::nanoseconds copying{0};              ///< Part of the run: the runner copies inputs and outputs.
  std::chrono::nanoseconds waiting_for_session{0};  ///< Part of the run: the runner waits for another run's end.
  std::size_t run_size = 1;                         ///< How many requests its last run had.

  std::atomic<bool> ending{false};  ///< Asks the run to end. Set before the runner is notified.
  bool by_graph = false;            ///< Its last run was a CUDA graph's.

  int priority = 0;  ///< Higher ones begin first. Declared here, beside what else decides whose turn it is.

 private:
  friend class Deadlines;
  friend class DeviceGroup;
  friend class Dispatcher;
  friend class JointRuns;
  friend class Pool;
  friend class WaitingRequests;
  friend class Workers;
  friend struct GoesBefore;

  /// A request without a deadline has its turn as if its deadline were so late. Else requests with deadlines could keep
  /// it waiting for ever.
  static constexpr std::chrono::minutes without_deadline{1};

  /// Whether this request has its turn before the other one, while both wait. A retried request came before the others,
  /// and goes first whatever else counts: the search for a request relies on that.
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
  // Its deadline passed during its run, and its receiver has it. The run still uses its inputs and writes its answer,
  // which nobody may read.
  bool given_up_ = false;
  Clock::time_point due_;     // its deadline, or the substitute for one
  std::uint64_t number_ = 0;  // in the order in which they began to wait

  enum class Phase { unqueued, waiting, running, finished };
  Phase phase_ = Phase::unqueued;
  void* worker_ = nullptr;  // the worker that runs it
  JointSize size_;
  std::string batch_key_;                 // empty: it runs alone
  std::shared_ptr<Suspicion> suspicion_;  // of its failed run, while it is tried elsewhere
  // The error of its last run. Kept until the request is freed: an error may be Python's, and then no lock is held.
  std::exception_ptr run_error_;
  RequestQueue::iterator position_;  // while it waits
  std::optional<std::multimap<Clock::time_point, std::weak_ptr<Request>>::iterator> deadline_entry_;
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
