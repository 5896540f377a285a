#pragma once

#include <onnxruntime_cxx_api.h>

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "core/ort/session.hpp"
#include "core/ort/value.hpp"

namespace ortmulti {

using Values = std::vector<std::shared_ptr<const Value>>;

/// Throws Error for a value of another type than the model declares, or of a rank or dimension that it does not take.
void check_input(const ValueInfo& declared, const Value& value);

/// A tensor in memory of the session's allocator for a device, whose elements have no particular value. It outlives the
/// session. Throws Error for strings, and for a GPU that is not the session's.
std::shared_ptr<Value> allocate_in(Session& session, ONNXTensorElementDataType type,
                                   const std::vector<std::int64_t>& shape, const Device& device);

/// Runs a session with values. Throws Error, where it can be known before ONNX Runtime runs: for an unknown or missing
/// name, another type, and a rank or dimension that the model does not take. No output names: all outputs.
Values run_with_values(Session& session, const Ort::RunOptions& options, const std::vector<std::string>& input_names,
                       const Values& inputs, const std::vector<std::string>& output_names);

/// The values that runs of one session read and write. It keeps them, and the session, alive. It may be used from
/// several threads, one after another. All but the destructor throw Error: with ErrorKind::closed after the session was
/// closed, with ErrorKind::forked in a child of the process that made it.
class IoBinding : NonCopyable {
 public:
  explicit IoBinding(std::shared_ptr<Session> session);
  ~IoBinding();

  const std::shared_ptr<Session>& session() const noexcept { return session_; }

  /// Binds a value, checked as by run_with_values(). If the session runs on another device, the value is copied there
  /// now.
  void bind_input(const std::string& name, std::shared_ptr<const Value> value);
  void bind_output(const std::string& name, std::shared_ptr<const Value> value);
  /// ONNX Runtime allocates the output at the first run, in the device's memory; later runs may write there again.
  void bind_output(const std::string& name, const Device& device);
  void clear_inputs();
  void clear_outputs();
  /// Waits until the inputs, or the outputs, are where they are bound.
  void synchronize(bool inputs);

  void run(const Ort::RunOptions& options);
  /// The outputs in the order in which they were bound: those of the last run, or without value.
  Values outputs();

 private:
  using Bound = std::map<std::string, std::shared_ptr<const Value>>;

  auto with_binding(const std::string& what, const auto& function);

  std::shared_ptr<Session> session_;
  unsigned generation_;
  std::mutex mutex_;
  Bound inputs_;
  Bound outputs_;
  Values used_;  // by the last run: its outputs may lie in memory that is no longer bound
  Ort::IoBinding binding_{nullptr};
};

}  // namespace ortmulti
