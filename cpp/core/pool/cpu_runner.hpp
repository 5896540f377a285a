#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "core/base/mutex.hpp"
#include "core/base/non_copyable.hpp"
#include "core/ort/session.hpp"
#include "core/pool/runner.hpp"

namespace ortmulti {

/// A model's sessions on the CPU: one whose runs have all cores, and one whose runs have one thread each, for runs side
/// by side. Of several runs at the same time, those of one thread wait for nobody: on a busy machine a run of all cores
/// waits at each node for the thread that was interrupted. Any thread may use it.
class CpuSessions : public std::enable_shared_from_this<CpuSessions>, NonCopyable {
 public:
  /// Called when the session of one thread is wanted, which is not being made. Has another thread call add() or
  /// not_made() later. It must not throw.
  using Wanted = std::function<void(const std::shared_ptr<CpuSessions>& sessions)>;

  CpuSessions(std::shared_ptr<Session> all_cores, Wanted wanted)
      : all_cores_(std::move(all_cores)), wanted_(std::move(wanted)) {}

  const std::shared_ptr<Session>& all_cores() const noexcept { return all_cores_; }
  /// Null: there is none.
  std::shared_ptr<Session> one_thread() const;
  /// Why not more than one run may be under way; empty: they may. Nothing: the session that it takes is being made.
  std::optional<std::string> why_no_more();
  /// Frees that session, until it is wanted again. Returns whether there was one.
  bool drop();
  void add(std::shared_ptr<Session> one_thread);
  void not_made(const std::string& reason);
  /// Nobody uses it any more.
  void end();
  bool ended() const;

 private:
  const std::shared_ptr<Session> all_cores_;
  const Wanted wanted_;
  mutable Mutex mutex_;
  std::shared_ptr<Session> one_thread_ ORTMULTI_GUARDED_BY(mutex_);
  bool being_made_ ORTMULTI_GUARDED_BY(mutex_) = false;
  std::string why_not_ ORTMULTI_GUARDED_BY(mutex_);  // it was not made, until somebody was told
  bool ended_ ORTMULTI_GUARDED_BY(mutex_) = false;
};

/// Runs requests with one of the sessions: those that are to be side by side with that of one thread.
class CpuRunner : public SessionRunner {
 public:
  explicit CpuRunner(std::shared_ptr<CpuSessions> sessions)
      : SessionRunner(sessions->all_cores()), sessions_(std::move(sessions)) {}

  void run(Request& request) override;
  std::optional<Session::Arena> arena() noexcept override;
  void shrink_arena(Session::Shrink when) override;
  std::optional<std::string> why_no_more() noexcept override;
  void no_more_run() noexcept override { sessions_->drop(); }
  bool drop_graphs() override { return sessions_->drop(); }

 private:
  const std::shared_ptr<CpuSessions> sessions_;
};

}  // namespace ortmulti
