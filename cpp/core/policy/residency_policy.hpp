#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/policy/numbers.hpp"
#include "core/policy/sleep_level.hpp"

namespace ortmulti {

/// What a pool's device has done and has to do.
struct PoolActivity {
  std::uint64_t arrived = 0;  ///< Requests that it got, or that wait for it.
  std::size_t busy = 0;       ///< Requests under way.
  std::size_t waiting = 0;    ///< Those that any device may take are among them where no device takes them.
  double run_seconds = 0;     ///< Mean of a run.
  bool asked_awake = false;   ///< Whether the wake that is under way was asked for, not only needed by a request.

  /// Whether anybody wants the device awake.
  bool wants_wake() const noexcept { return asked_awake || waiting > 0; }
};

/// Decides which models of one device are awake within a budget of its memory. It has no clock, no thread and no lock:
/// times are seconds since any origin, and never go back.
class ResidencyPolicy {
 public:
  using Id = std::size_t;

  /// What it does now. A model in transition takes as much as at the higher of both levels.
  enum class State { resting, waking, falling };

  struct Asleep {
    std::uint64_t bytes = 0;  ///< That it keeps.
    double wake = 0;          ///< Seconds that a wake takes; learned.
  };

  struct Model {
    std::uint64_t bytes = 0;              ///< That it takes while it is awake.
    std::map<SleepLevel, Asleep> sleeps;  ///< The levels that it can go to.
    bool pinned = false;                  ///< It stays awake.
    bool protect = false;                 ///< It sleeps where all others that may do not suffice.
    bool loading = false;                 ///< It takes nothing yet. It cannot sleep, and others wait until it can.
    SleepLevel level = SleepLevel::awake;

    std::uint64_t bytes_at(SleepLevel at) const;
  };

  struct Eviction {
    Id model;
    SleepLevel to;
  };

  /// What is to happen before a model may wake.
  struct Decision {
    enum class Kind {
      wake,        ///< There is room, and it is the model's from now on.
      evict,       ///< These are to sleep, all of them; then decide() again.
      wait,        ///< Until something changes, or until then.
      impossible,  ///< What stays for longer than a moment leaves too little room.
    };
    Kind kind = Kind::wait;
    std::vector<Eviction> evictions;
    std::optional<double> until;
  };

  explicit ResidencyPolicy(std::uint64_t budget) : budget_(budget) {}

  /// Throws Error with ErrorKind::out_of_memory where the model alone exceeds the budget; `name` is for the message.
  Id add(const Model& model, const std::string& name, double now);
  void remove(Id id) { entries_.erase(id); }
  const Model& model(Id id) const { return entries_.at(id).model; }
  State state(Id id) const { return entries_.at(id).state; }
  void pin(Id id, bool pinned) { entries_.at(id).model.pinned = pinned; }
  /// What it keeps at a level, measured again. None: it cannot go there.
  void set_kept(Id id, SleepLevel level, std::optional<std::uint64_t> bytes);

  /// Memory that belongs to no model: what libraries keep, and what models took since they were measured.
  void set_other(std::uint64_t bytes) { other_ = bytes; }
  /// Takes note of what a model does; to be called for each one before decide().
  void observe(Id id, const PoolActivity& activity, double now);

  /// For a model that is to wake. `at_least`: bytes that others are to give back although the budget has room, since
  /// the device has not.
  Decision decide(Id id, double now, std::uint64_t at_least = 0);
  /// Whether the model may wake before `first`, which waits for the memory of others: there is room for it, and the
  /// sleeps under way still give the first one all that it needs.
  bool may_pass(Id id, Id first) const;
  /// It has its memory from now on.
  void grant(Id id) { entries_.at(id).state = State::waking; }
  /// How many seconds its runs may hold up its sleep: twice as many each time that these did not suffice. Runs that
  /// overlap end some time if none begins; so the tries take at most three times the longest run, and a second each.
  double patience(Id id) const { return entries_.at(id).patience; }
  bool busy(Id id) const { return entries_.at(id).activity.busy > 0; }

  void falls(const Eviction& eviction);
  void fell(Id id, SleepLevel level);
  /// It ran for longer than its patience: it may begin other runs for a second.
  void stayed(Id id, double now);
  /// It failed to sleep, and is asked again after a pause. After the third time others do not wait for it.
  void refused(Id id, double now);
  void woke(Id id, double now, double seconds);
  /// It is as before: the wake failed, or what was to happen is not wanted any more.
  void rests(Id id) { entries_.at(id).state = State::resting; }

  std::uint64_t budget() const noexcept { return budget_; }
  /// Bytes in use, with those that waking models have been promised.
  std::uint64_t used() const;
  /// The models' part of used(), without set_other().
  std::uint64_t models() const;
  std::uint64_t needed(Id id) const { return needed(entries_.at(id)); }
  /// Whether the sessions of a model are being made again, or closed.
  bool remakes_sessions() const;
  /// Requests a second, of late.
  double rate(Id id) const { return entries_.at(id).rate; }

 private:
  struct Entry {
    Model model;
    State state = State::resting;
    SleepLevel target = SleepLevel::awake;  // of a transition
    PoolActivity activity;
    std::uint64_t arrived = 0;  // when it was observed
    double observed = 0;
    double used = 0;  // when requests were last seen
    double rate = 0;
    double woken = 0;
    double not_before = 0;
    double patience = *numbers::residency_first_patience;
    double refuses_until = 0;
    std::size_t refusals = 0;  // in a row
  };
  struct Candidate {
    Eviction eviction;
    std::uint64_t bytes;
    double cost;
    bool last;  // whatever it costs
  };

  static std::uint64_t size(const Entry& entry);
  static std::uint64_t needed(const Entry& entry) { return entry.model.bytes - size(entry); }
  /// What the sleeps under way will give back.
  std::uint64_t falling() const;
  /// What it could be brought down to, sooner or later.
  static std::uint64_t least(const Entry& entry, double now);
  /// Seconds that requests are expected to wait longer if it sleeps, from where a wake takes so long.
  static double cost(const Entry& entry, double wake, double now);
  static void add_candidates(Id id, const Entry& entry, double now, std::vector<Candidate>& candidates,
                             std::optional<double>& until);

  const std::uint64_t budget_;
  std::uint64_t other_ = 0;
  std::map<Id, Entry> entries_;
  Id next_ = 0;
};

}  // namespace ortmulti
