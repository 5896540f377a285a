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

/// Runs a pool's requests, one at a time: with a session, or with a fake in tests.
class Runner {
 public:
  virtual ~Runner() = default;

  virtual const Device& device() const noexcept = 0;

  /// Identifies the session, which several runners may share.
  virtual const void* session() const noexcept { return this; }

  /// Fills in the outputs. Throws Error.
  virtual void run(Request& request) = 0;

  /// Asks the run of this request to end. Called by another thread; the run may have ended meanwhile.
  virtual void terminate(Request& request) noexcept = 0;

  /// The graphs of its session.
  virtual GraphCounts graphs() const { return {}; }
  /// Whether graphs are being made, which slows the runs beside it.
  virtual bool makes_graphs() const noexcept { return false; }
  /// Frees the graphs, or what else was made beside the session. Returns whether there was any. It may be made again.
  virtual bool drop_graphs() { return false; }

  /// Weights that its session has in common with others, and the bytes of the device that they take now.
  struct Weights {
    const void* store = nullptr;
    std::uint64_t bytes = 0;
  };
  virtual Weights weights() noexcept { return {}; }
  /// What ONNX Runtime keeps for runs of its session; nothing if unknown.
  virtual std::optional<Session::Arena> arena() noexcept { return std::nullopt; }
  /// Session::shrink_arena().
  virtual void shrink_arena(Session::Shrink /*when*/) {}
  /// Memory of the host for the inputs of a joint run, from which the device copies by itself; null: any will do.
  virtual std::shared_ptr<std::byte> memory_for_inputs(std::size_t /*bytes*/) noexcept { return nullptr; }
  /// Gives back what the runner itself keeps.
  virtual void free_buffers() {}
  /// Bytes of the inputs of its largest run since the last call; 0: there was no run.
  std::uint64_t take_largest() noexcept { return largest_.exchange(0, std::memory_order_relaxed); }

  /// Whether its session ran since the last call; graphs beside it do not count.
  bool take_session_run() noexcept { return session_ran_.exchange(false, std::memory_order_relaxed); }

  /// Why no more runners of the device may run at the same time; empty: they may. Nothing: ask again.
  virtual std::optional<std::string> why_no_more() noexcept { return ""; }
  /// Called when measurements chose the number that runs at first.
  virtual void no_more_run() noexcept {}

  /// Called after a run failed. Why no later run on this device can succeed; empty: it can.
  virtual std::string why_broken() noexcept = 0;

 protected:
  /// To be called when a run begins.
  void note_run(std::uint64_t input_bytes) noexcept;
  /// To be called when its session is run.
  void note_session_run() noexcept { session_ran_.store(true, std::memory_order_relaxed); }

 private:
  std::atomic<std::uint64_t> largest_{0};
  std::atomic<bool> session_ran_{false};
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
  Weights weights() noexcept override;
  std::optional<Session::Arena> arena() noexcept override;
  void shrink_arena(Session::Shrink when) override { session_->shrink_arena(when); }

 protected:
  void run_with(const std::shared_ptr<Session>& session, Request& request);
  /// For spans.
  const std::string& device_name() const noexcept { return device_name_; }

 private:
  std::shared_ptr<Session> session_;
  std::string device_name_;
};

}  // namespace ortmulti
