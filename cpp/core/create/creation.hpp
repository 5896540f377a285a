#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "core/base/left_threads.hpp"
#include "core/cuda/startup.hpp"
#include "core/onnx/index.hpp"
#include "core/onnx/weight_list.hpp"
#include "core/ort/options.hpp"
#include "core/ort/session.hpp"
#include "core/weights/loader.hpp"

namespace ortmulti {

/// Which creations wait for each other: none; those on the same device; all. `automatic`: those on the same GPU, for
/// releases of ONNX Runtime that why_in_turn() is about.
enum class Serialize { none, device, all, automatic };

/// Why sessions on one GPU are created one after another with this release of ONNX Runtime ("1.31.1"); empty: they are
/// created at the same time. See docs/concurrent-creation.md.
std::string why_in_turn(const std::string& onnxruntime_version);

/// Moves the values for external data that have at least `min_bytes`, in the host's memory, from the options to a list
/// of weights.
WeightList take_external_weights(SessionOptions& options, std::uint64_t min_bytes);

/// Adds weights to the options as values for external data. Those that are nowhere in memory are read. Throws Error.
void add_external_weights(SessionOptions& options, const WeightList& list);

struct CreationRequest {
  /// What sessions on a device have otherwise than the others.
  struct OnDevice {
    std::string model;                                  ///< A file instead of the model; empty: none.
    std::map<std::string, std::string> config_entries;  ///< Besides those of the options; of the first one alone.
  };

  ModelSource model;
  /// The providers of each session, after those of the options; a plug-in's by its device ("openvino:CPU").
  std::vector<std::vector<Provider>> sessions;
  SessionOptions options;
  Serialize serialize = Serialize::automatic;
  std::optional<SharedWeights> weights;
  /// Where the first session saves its optimized model, whose weights it uses all the same; empty: nowhere.
  std::string save_optimized;
  std::map<std::string, OnDevice> on_devices;  ///< By the devices' names.
  /// The sessions on the CPU, or on a plug-in's device, are handles of one ONNX Runtime session.
  bool one_session_each = false;
  bool preload = false;                ///< Each GPU loads meanwhile what the model's first run needs, see Preload.
  bool keep_going = false;             ///< One session's failure is not that of the others.
  std::shared_ptr<Timeline> timeline;  ///< To add spans to; null: a new one.
  /// The other GPUs' contexts wait for the first one's while it is held; released early if the first one fails.
  std::shared_ptr<CudaStartup::Hold> hold;
};

/// N sessions on N threads. The threads own what they need, so that whoever waits may give up: what then is still
/// being created is freed by its thread, and the process waits for those threads before it ends. Ends with take() or
/// cancel(), from the thread that started it.
class Creation : public std::enable_shared_from_this<Creation>, NonCopyable {
 public:
  /// Starts the threads. Fewer where the system has no more of them: then none is left running and an Error is thrown.
  static std::shared_ptr<Creation> start(OnnxRuntime& runtime, CreationRequest request);

  struct Failure {
    std::size_t index;
    std::exception_ptr error;
  };
  struct Progress {
    std::vector<std::size_t> ready;  ///< The sessions that became ready, and those that failed, since the last call.
    std::vector<Failure> failed;
    std::uint64_t loaded_bytes = 0;  ///< Of weights, there or on their way to the first device.
    std::uint64_t total_bytes = 0;   ///< Of them; 0 without shared weights.
    bool finished = false;
  };
  /// Waits at most `timeout` for some.
  Progress wait(std::chrono::milliseconds timeout);

  /// Gives up: what was created is closed, what has not begun does not begin.
  void cancel();

  /// Gives away one session that became ready, to be closed by whoever has it. Null where it was given away before, or
  /// closed since another one failed.
  std::shared_ptr<Session> take(std::size_t index);
  /// Waits, and gives the sessions away in the order asked for; null for those that were given away before, or failed
  /// beside others that kept going. If one failed, or all that kept going, all are closed and the first error is
  /// thrown; also throws after cancel().
  std::vector<std::shared_ptr<Session>> take();

  std::size_t size() const noexcept { return request_.sessions.size(); }
  const Device& device(std::size_t index) const { return devices_[index]; }
  const std::shared_ptr<Timeline>& timeline() const noexcept { return timeline_; }

  Creation(OnnxRuntime& runtime, CreationRequest request);  // for start()
  ~Creation();

 private:
  void start_threads();
  bool stopped() const;
  void create(std::size_t index);
  void preload(const Device& device);
  std::shared_ptr<Session> create_session(std::size_t index);
  /// Hands over the sessions that create(index) made, or none and why.
  void finish(std::size_t index, std::vector<std::shared_ptr<Session>> made, const std::exception_ptr& error);
  bool is_first(std::size_t index) const;
  /// Whether this session is a handle of another one's, which is created on the same device.
  bool follows(std::size_t index) const;
  bool made_with(std::size_t index, std::size_t created) const;
  const ModelIndex& model_index();
  std::string why_not_one_session();
  SessionOptions options_for(const Device& device) const;
  /// The lock under which sessions on the device are created; null where they need not wait.
  std::mutex* turn(const Device& device);
  void release_hold();
  void leave_threads();  ///< To join_cancelled_creations().

  /// Throws Error with ErrorKind::out_of_memory where the weights of all sessions on the GPU exceed its free memory.
  void check_memory(const Device& device);

  OnnxRuntime& runtime_;
  CreationRequest request_;
  std::vector<Device> devices_;
  std::shared_ptr<Timeline> timeline_;
  std::unique_ptr<WeightLoader> loader_;
  std::once_flag host_weights_read_;  // these four are for sessions on the CPU
  HostMemory host_memory_;
  std::once_flag host_weights_made_;
  std::shared_ptr<const WeightStore> host_weights_;
  std::once_flag indexed_;
  ModelIndex index_;
  std::map<std::string, std::mutex> turns_;              // these two are filled before the threads start
  std::map<std::string, std::once_flag> memory_checks_;  // one a device

  mutable std::mutex mutex_;
  std::condition_variable progress_;
  std::size_t finished_ = 0;
  bool stopped_ = false;  // cancelled, or one has failed: do not begin another
  bool cancelled_ = false;
  std::vector<std::size_t> newly_ready_;
  std::vector<Failure> newly_failed_;
  std::size_t made_ = 0;
  std::vector<std::shared_ptr<Session>> sessions_;
  std::exception_ptr error_;  // the first
  std::vector<LeftThreads::Thread> threads_;
};

/// Waits for the threads of cancelled creations. Called before the process ends.
void join_cancelled_creations();

}  // namespace ortmulti
