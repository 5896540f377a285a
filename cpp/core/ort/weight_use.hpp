#pragma once

#include <onnxruntime_cxx_api.h>

#include <cstddef>
#include <cstdint>
#include <set>
#include <shared_mutex>
#include <string>
#include <vector>

#include "core/base/device.hpp"
#include "core/base/log_queue.hpp"
#include "core/ort/options.hpp"

namespace ortmulti {

/// One copy of a model's weights on one device, used in place by the sessions over it.
class WeightStore : NonCopyable {
 public:
  virtual ~WeightStore() = default;

  virtual const Device& device() const noexcept = 0;
  /// Gives ONNX Runtime every weight, under its name. Values stay valid as long as the store.
  virtual void add_to(Ort::SessionOptions& options) const = 0;

  /// Keeps the weights where they are for its lifetime. Throws Error where they are asleep. Not twice in a thread.
  using Hold = std::shared_lock<std::shared_mutex>;
  virtual Hold hold() const { return {}; }
  /// Bytes of the device that they take now; 0 on the CPU.
  virtual std::uint64_t device_bytes() const noexcept { return 0; }
};

/// What a session's creation did with the weights that it was given. One that is in neither is in no graph any more.
struct WeightUse {
  std::size_t used = 0;              ///< Weights that the session uses in place.
  std::vector<std::string> refused;  ///< Weights that it read from the model instead, by name and in order.
};

/// Finds out what one creation does with weights that are given by AddInitializer. ONNX Runtime says it in its log
/// alone, a line a weight, at the level "info"; the session's logger gets that level for good, and a mark in its name
/// by which its records are told apart and cut down to what the user asked for, see pass_on().
class WeightUseWatch : NonCopyable {
 public:
  /// For a session with these options.
  explicit WeightUseWatch(const SessionOptions& options);
  ~WeightUseWatch();

  /// Sets the severity and the logid under which the session is to be created.
  void apply(Ort::SessionOptions& options) const;

  const std::string& logid() const noexcept { return logid_; }  ///< The user's, and the mark.

  /// What was said so far.
  WeightUse use() const;

 private:
  friend bool pass_on(LogRecord& record);

  std::uint64_t number_;
  int severity_;
  std::string logid_;
  std::set<std::string> used_;  // these two by pass_on(), under the registry's lock
  std::set<std::string> refused_;
};

/// The log severity of a session with these options: the user's, or else ONNX Runtime's environment's.
int log_severity(const SessionOptions& options) noexcept;

/// To be called with each record of ONNX Runtime's log, from any thread. Takes note of what is said of weights, and
/// makes the record of a watched session what it would be without the watch; false where there would be none.
bool pass_on(LogRecord& record);

}  // namespace ortmulti
