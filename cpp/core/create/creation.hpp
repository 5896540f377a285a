#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <stop_token>
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

/// Which creations take turns: none; those on the same device; all. `automatic`: those on the same GPU, if
/// why_in_turn() has a reason.
enum class Serialize { none, device, all, automatic };

/// Why this release of ONNX Runtime ("1.31.1") creates sessions on one GPU one after another; empty: at the same time.
/// See docs/inside/concurrent-creation.md.
std::string why_in_turn(const std::string& onnxruntime_version);

struct CreationRequest {
  /// What sessions on one device have different from the others.
  struct OnDevice {
    std::string model;                                  ///< A file instead of the model; empty: none.
    std::map<std::string, std::string> config_entries;  ///< Of the first session there, besides those of the options.
  };

  ModelSource model;
  /// The providers of each session, after those of the options; a plug-in's by its device ("openvino:CPU").
  std::vector<std::vector<Provider>> sessions;
  SessionOptions options;
  Serialize serialize = Serialize::automatic;
  std::optional<SharedWeights> weights;
  /// Where the first session saves its optimized model; it still uses the given weights. Empty: nowhere.
  std::string save_optimized;
  std::map<std::string, OnDevice> on_devices;  ///< By the devices' names.
  /// The sessions on the CPU, or on a plug-in's device, are handles of one ONNX Runtime session.
  bool one_session_each = false;
  bool preload = false;                ///< Each GPU preloads what the model's first run needs, see Preload.
  bool keep_going = false;             ///< One session's failure does not fail the others.
  std::shared_ptr<Timeline> timeline;  ///< Gets spans; null: a new timeline.
  /// The other GPUs' contexts wait for the first one's while it is held; released early if the first one fails.
  std::shared_ptr<CudaStartup::Hold> hold;
};

/// Creates N sessions on N threads. The threads own what they need, so that the caller may give up. Then each thread
/// frees the session that it is creating, and the process waits for these threads before it ends. End it by take() or
/// cancel(), from the thread that started it.
class Creation : public std::enable_shared_from_this<Creation>, NonCopyable {
 public:
  /// Starts the threads. If the system does not have so many, it ends them and throws Error.
  static std::shared_ptr<Creation> start(OnnxRuntime& runtime, CreationRequest request);

  struct Failure {
    std::size_t index;
    std::exception_ptr error;
  };
  struct Progress {
    std::vector<std::size_t> ready;  ///< Sessions that became ready since the last call; below, those that failed.
    std::vector<Failure> failed;
    std::uint64_t loaded_bytes = 0;  ///< Bytes of weights that are on the first device, or on their way.
    std::uint64_t total_bytes = 0;   ///< Bytes of all weights; 0 without shared weights.
    bool finished = false;
  };
  /// Waits at most `timeout` for progress.
  Progress wait(std::chrono::milliseconds timeout);

  /// Gives up. Created sessions are closed, and no further one begins.
  void cancel();

  /// Hands over one ready session, which the caller closes. Null if it was handed over before, or closed since another
  /// one failed.
  std::shared_ptr<Session> take(std::size_t index);
  /// Waits, and hands over the sessions in the request's order. Null: handed over before, or failed with `keep_going`.
  /// If one failed, or all with `keep_going`, closes all and throws the first error. Throws after cancel(), too.
  std::vector<std::shared_ptr<Session>> take();

  std::size_t size() const noexcept { return request_.sessions.size(); }
  const Device& device(std::size_t index) const { return devices_[index]; }
  const std::shared_ptr<Timeline>& timeline() const noexcept { return timeline_; }

  Creation(OnnxRuntime& runtime, CreationRequest request);  // for start()
  ~Creation();

 private:
  void start_threads();
  void create(std::size_t index);
  void preload(const Device& device);
  std::shared_ptr<Session> create_session(std::size_t index);
  /// Ends create(index): stores the sessions that it made, or the error.
  void finish(std::size_t index, std::vector<std::shared_ptr<Session>> made, const std::exception_ptr& error);
  bool is_first(std::size_t index) const;
  /// Whether this session is a handle of an earlier one on the same device.
  bool follows(std::size_t index) const;
  bool made_with(std::size_t index, std::size_t created) const;
  const ModelIndex& model_index();
  std::string why_not_one_session();
  SessionOptions options_for(const Device& device) const;
  /// The lock under which sessions on the device are created; null: they need none.
  std::mutex* turn(const Device& device);
  void release_hold();
  void leave_threads();  ///< To join_cancelled_creations().

  /// Throws Error with ErrorKind::out_of_memory if the weights of all sessions on the GPU exceed its free memory.
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

  std::mutex mutex_;
  std::condition_variable progress_;
  std::size_t finished_ = 0;
  std::stop_source stop_;  // cancelled, or one has failed: do not begin another
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
