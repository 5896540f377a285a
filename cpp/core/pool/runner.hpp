#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "core/base/device.hpp"
#include "core/ort/session.hpp"
#include "core/pool/device_stats.hpp"

namespace ortmulti {

class Request;

/// What runs a pool's requests, one at a time: a session, or what stands for one.
class Runner {
 public:
  virtual ~Runner() = default;

  virtual const Device& device() const noexcept = 0;

  /// What tells a session, which several runners may share, from others.
  virtual const void* session() const noexcept { return this; }

  /// Fills in the outputs. Throws Error.
  virtual void run(Request& request) = 0;

  /// Asks that the run of this request ends, from another thread than its own. The run may have ended meanwhile.
  virtual void terminate(Request& request) noexcept = 0;

  /// Those of its session.
  virtual GraphCounts graphs() const { return {}; }
  /// Frees those. Returns whether there were any. Their shapes may come again.
  virtual bool drop_graphs() { return false; }

  /// What ONNX Runtime keeps for its session's runs; nothing where nobody knows.
  virtual std::optional<Session::Arena> arena() noexcept { return std::nullopt; }
  /// Session::shrink_arena().
  virtual void shrink_arena(Session::Shrink /*when*/) {}
  /// The same for what the runner alone keeps.
  virtual void free_buffers() {}
  /// Bytes of the inputs of its largest run since the last call; 0: there was none.
  std::uint64_t take_largest() noexcept { return largest_.exchange(0, std::memory_order_relaxed); }

  /// Before more of the device's runners run at the same time: why they must not; empty where they may.
  virtual std::string why_no_more() noexcept { return {}; }

  /// Called after a run failed: why no later run on this device can succeed; empty where it can.
  virtual std::string why_broken() noexcept = 0;

 protected:
  /// To be called when a run begins.
  void note_run(std::uint64_t input_bytes) noexcept;

 private:
  std::atomic<std::uint64_t> largest_{0};
};

/// Runs requests with a session.
class SessionRunner : public Runner {
 public:
  explicit SessionRunner(std::shared_ptr<Session> session)
      : session_(std::move(session)), device_name_(to_string(session_->device())) {}

  const Device& device() const noexcept override { return session_->device(); }
  void run(Request& request) override;
  void terminate(Request& request) noexcept override;
  const void* session() const noexcept override { return session_.get(); }
  const std::shared_ptr<Session>& loaded() const noexcept { return session_; }
  /// A GPU's context refuses everything after a fault in a kernel, in whichever session of the process.
  std::string why_broken() noexcept override;
  std::optional<Session::Arena> arena() noexcept override;
  void shrink_arena(Session::Shrink when) override { session_->shrink_arena(when); }

 protected:
  /// For spans.
  const std::string& device_name() const noexcept { return device_name_; }

 private:
  std::shared_ptr<Session> session_;
  std::string device_name_;
};

}  // namespace ortmulti
