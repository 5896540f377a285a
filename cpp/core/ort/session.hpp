#pragma once

#include <onnxruntime_cxx_api.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <shared_mutex>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/async_runs.hpp"
#include "core/base/device.hpp"
#include "core/base/error.hpp"
#include "core/base/timeline.hpp"
#include "core/cuda/graph.hpp"
#include "core/ort/caller_threads.hpp"
#include "core/ort/library.hpp"
#include "core/ort/options.hpp"
#include "core/ort/planned_shapes.hpp"
#include "core/ort/value.hpp"
#include "core/ort/weight_use.hpp"

namespace ortmulti {

/// A model: a file, or bytes.
struct ModelSource {
  std::string path;                                      ///< Of bytes: that of the file they were made of, if of any.
  std::shared_ptr<const unsigned char> bytes = nullptr;  ///< Null: the model is the file.
  std::size_t size = 0;

  std::string describe() const;                  ///< "'model.onnx'" or "a model of 123 bytes"
  std::shared_ptr<const Source> source() const;  ///< Its bytes. Throws Error with no_such_file.
};

/// One ONNX Runtime session, or one of several handles to the same. Everything but the constructor may be called from
/// any thread.
class Session : NonCopyable {
 public:
  /// Gives the weights that take the place of the model's initializers of the same names, and that are held until ONNX
  /// Runtime's session is freed. It may wait for them: all that goes without them is done before.
  using Weights = std::function<std::shared_ptr<const WeightStore>()>;

  /// Keeps close() waiting for its lifetime.
  using Lock = std::shared_lock<std::shared_mutex>;

  /// The calling thread has the session's device current afterwards. It creates the session, unless this is to have a
  /// stream of its own: then in_own_thread() does.
  Session(OnnxRuntime& runtime, const ModelSource& model, const SessionOptions& options,
          std::vector<Provider> providers, Timeline* timeline, const Weights& weights = {});
  ~Session();

  /// Another handle to the same ONNX Runtime session, which is freed when the last one is closed. Throws Error where
  /// this one cannot be used any more.
  std::shared_ptr<Session> share();

  const Device& device() const noexcept { return description_->device; }
  const std::string& model() const noexcept { return description_->model; }  ///< ModelSource::describe().
  const std::vector<Provider>& providers() const noexcept { return description_->providers; }
  const SessionOptions& options() const noexcept { return description_->options; }
  const std::vector<ValueInfo>& inputs() const noexcept { return description_->inputs; }
  const std::vector<ValueInfo>& outputs() const noexcept { return description_->outputs; }
  const std::vector<ValueInfo>& overridable_initializers() const noexcept {
    return description_->overridable_initializers;
  }
  const Metadata& metadata() const noexcept { return description_->metadata; }
  /// The declaration of an input or overridable initializer; of an output. They throw Error for an unknown name.
  const ValueInfo& input(std::string_view name) const;
  const ValueInfo& output(std::string_view name) const;
  /// Throws Error unless every input that is not optional is among these names.
  void check_complete(const std::vector<const char*>& fed) const;
  /// The threads of its pools, where they were made as SessionOptions::threads say; else null.
  const std::shared_ptr<const ThreadGroup>& threads() const noexcept { return description_->threads; }
  /// The weights that it uses in place; null if it has its own.
  std::shared_ptr<const WeightStore> weights(const Lock& open) const;
  /// Held by whoever has the GPU read the weights.
  WeightStore::Hold hold_weights(const Lock& open) const;
  /// What became of the weights that the creation was given.
  const WeightUse& weight_use() const noexcept { return description_->weight_use; }

  /// Runs the model. Options may be null. Throws Error.
  std::vector<Ort::Value> run(const Ort::RunOptions& run_options, const RunInputs& inputs,
                              const std::vector<const char*>& output_names);

  /// Throws Error where the session cannot be used any more. Not twice in a thread.
  Lock lock_for_use();
  /// Has a caller's run done. On a GPU by one of few threads, however many call: ONNX Runtime keeps a stream with
  /// handles and workspaces for each, 170 MB on an H200, and 64 threads answered a quarter of what 8 did.
  void call(const std::function<void()>& run);
  Ort::IoBinding make_binding(const Lock& open) const;
  /// Calls `bind`, which binds inputs and does nothing else: ONNX Runtime has them copied by a stream, as a run does.
  void bind_inputs(const Lock& open, const std::function<void()>& bind) const;
  Ort::Allocator make_allocator(const Lock& open, const Ort::MemoryInfo& memory) const;
  /// `shapes`: those of the inputs that are bound, by add_shape(); 0: the run captures nothing, as one that replays a
  /// CUDA graph.
  void run(const Lock& open, const Ort::RunOptions& run_options, const Ort::IoBinding& binding,
           std::uint64_t shapes) const;
  /// A run of a known shape while its stream is captured. The weights were held before the capture's DeviceSyncGuard
  /// was entered, as in every run: who puts them to sleep has them alone and then waits for the guard.
  void run_to_capture(const Lock& open, const WeightStore::Hold& weights, const Ort::RunOptions& run_options,
                      const Ort::IoBinding& binding) const;

  /// Has a run of this handle done by a thread of its own, beside at most as many as the session has threads within a
  /// node, of which one on a GPU has one. Throws Error where the session cannot be used any more.
  void run_later(AsyncRuns::Run run);

  /// Ends profiling and returns the path of the profile.
  std::string end_profiling();
  std::uint64_t profiling_start_time_ns();

  /// Whether each input is read, and each output written, on the session's GPU rather than by the CPU.
  struct Placement {
    std::vector<bool> inputs_on_device;
    std::vector<bool> outputs_on_device;
  };
  /// Where the session's inputs and outputs lie. Nothing before release 1.23, which cannot tell.
  std::optional<Placement> placement();

  /// The nodes that the CPU computes, as `Gather "/embed/Gather"`, where the session was created with the config entry
  /// `record_assignment`. Nothing before release 1.24, which cannot tell.
  std::vector<std::string> nodes_on_cpu();
  static constexpr const char* record_assignment = "session.record_ep_graph_assignment_info";

  /// The stream on which it runs, where it was created with `own_compute_stream` as the address of the provider's
  /// user_compute_stream; else null.
  CUstream compute_stream() const noexcept { return compute_stream_; }
  static constexpr const char* own_compute_stream = "18446744073709551615";
  /// Has work done by the thread that created a session with `own_compute_stream`. Kernels of such a session use the
  /// handles of cuBLAS and cuDNN of that thread, and ONNX Runtime makes more of them for each other thread that runs it
  /// (1.31.1), which no kernel uses. Throws what the work throws, and Error after close(). The work must not close it.
  void in_own_thread(const std::function<void()>& work);

  /// Bytes of the memory on its device that ONNX Runtime keeps for the session's runs.
  struct Arena {
    std::uint64_t held = 0;
    std::uint64_t used = 0;         ///< Of these, by weights of its own, runs and outputs that somebody has.
    std::uint64_t most_used = 0;    ///< At one time.
    const void* session = nullptr;  ///< Handles of one session have the same.
    void add(const Arena& more) noexcept {
      held += more.held;
      used += more.used;
      most_used += more.most_used;
    }
  };
  /// What the session's arena holds. Nothing if there is no arena, and before release 1.23, which cannot tell.
  std::optional<Arena> arena() const;
  enum class Shrink { now, in_next_run };
  /// Gives back what nobody uses of that. Where runs are under way, what lies beside their memory stays: a later run,
  /// of whichever handle, does it once more before it begins. Does nothing for a session that was created to capture
  /// CUDA graphs, which use it later, nor for a model whose inputs cannot be made up. On a GPU it is done by a thread
  /// that ends, since ONNX Runtime keeps a stream with handles for each thread that ran a session, or by the next run.
  void shrink_arena(Shrink when);

  /// Changes options of the providers, those that can be changed after the creation.
  void set_provider_options(const std::map<std::string, std::string>& options);
  /// Frees the graph that runs with this number captured, where the provider can. Throws Error with
  /// ErrorKind::not_implemented before release 1.27.
  void release_captured_graph(int annotation_id);

  /// Waits for the runs of this handle that are under way, and for those that were given to run_later(). The last
  /// handle to be closed frees the session and returns its memory to the system. Calling it again does nothing.
  void close();
  bool closed() const noexcept { return closed_.load(std::memory_order_acquire); }

 private:
  // What is known about a session, for as long as there is a handle, closed or not.
  struct Description {
    std::string model;
    Device device;
    SessionOptions options;  // without additions
    std::vector<Provider> providers;
    std::vector<ValueInfo> inputs;
    std::vector<ValueInfo> outputs;
    std::vector<ValueInfo> overridable_initializers;
    Metadata metadata;
    WeightUse weight_use;
    std::shared_ptr<const ThreadGroup> threads;
    bool may_run_unasked = false;  // a run more is nobody's concern
    unsigned generation = 0;
  };
  // What is freed with the last handle, ONNX Runtime's session before what it uses in place.
  struct LiveSession {
    std::shared_ptr<const void> model_bytes;
    std::shared_ptr<const ModelAdditions> additions;
    std::shared_ptr<const WeightStore> weights;
    std::vector<std::shared_ptr<const void>> plugins;
    std::unique_ptr<const CudaStream> compute_stream;
    std::shared_ptr<const ThreadGroup> threads;
    Ort::RunOptions run_options{nullptr};  // of runs that come without any
    Ort::Session session{nullptr};
    PlannedShapes planned;
    std::atomic<std::uint64_t> ended_threads{0};  // DeviceUse's, before the last use that succeeded
    std::atomic<int> runs{0};                     // under way
    enum class Shrinks { no, once_idle, in_next_run };
    std::atomic<Shrinks> shrinks{Shrinks::no};
  };

  Session(std::shared_ptr<const Description> description, std::shared_ptr<LiveSession> live);
  /// Calls `work` on a GPU, with a DeviceSyncGuard where it makes plans or a thread has ended; `alone`: with one that
  /// nothing goes beside. `runs`: it is a run.
  void use_guarded(bool runs, std::uint64_t shapes, bool alone, const std::function<void()>& work) const;
  void run_guarded(const Lock& open, std::uint64_t shapes, bool alone, const auto& run) const;
  void shrink() const;
  /// Calls run_guarded(), again where memory was lacking or cuDNN lost a capture.
  void run_with_retries(const Lock& open, std::uint64_t shapes, const auto& run) const;
  void run_checked(const auto& run) const;
  bool inherited() const noexcept;
  bool survives_fork() const noexcept;
  static void read_declarations(const Ort::Session& session, Description& description);
  Error closed_error() const;
  /// As close(), but what was freed may stay in the C library's heaps. With `cancel`, what was given to run_later() and
  /// has not begun is cancelled. Returns whether ONNX Runtime's session was freed.
  bool free_session(bool cancel);
  friend void close_all_sessions();

  std::shared_ptr<const Description> description_;
  std::atomic<bool> closed_{false};
  mutable std::shared_mutex mutex_;  // shared while in use, exclusive to close
  std::shared_ptr<LiveSession> live_;
  CUstream compute_stream_ = nullptr;  // what `live_` has
  AsyncRuns async_runs_;
  CallerThreads caller_threads_;
  AsyncRuns own_thread_;
};

/// The device on which these providers run: that of the first one that names a GPU or a plug-in's device, else the CPU.
Device device_of(const std::vector<Provider>& providers);

/// Sessions that are to be closed before the CUDA driver shuts down, whoever still holds them.
void register_for_shutdown(const std::shared_ptr<Session>& session);
/// Closes every registered session. Called at interpreter exit, and at the process's as a second line.
void close_all_sessions();

}  // namespace ortmulti
