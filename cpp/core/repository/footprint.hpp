#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>

#include "core/base/device.hpp"
#include "core/ort/session.hpp"
#include "core/policy/residency_policy.hpp"

namespace ortmulti {

/// What a model's files say before it is loaded.
struct ModelFiles {
  std::uint64_t bytes = 0;  ///< About those of its weights.
  bool convolves = false;
};

/// The memory of one model on one device: first expected, then what the process counts of it, with what nobody counts:
/// kernels and the handles of CUDA's libraries. It measures nothing itself, and has no lock.
class Footprint {
 public:
  using Levels = std::map<SleepLevel, ResidencyPolicy::Asleep>;

  /// `most_kept`: the most that another model was seen to keep there while it slept.
  Footprint(const Device& device, const ModelFiles& files, std::uint64_t most_kept);

  /// Bytes to reserve for the load.
  std::uint64_t expected() const noexcept { return files_ + most_kept_ + later_; }

  /// Takes note of the load and the first run. `counted`: the bytes that the model is known to have on a GPU. `grown`:
  /// by how many bytes that GPU's memory in use has grown that nobody counts; none where nobody can tell. `arena`: on
  /// the CPU, of all sessions.
  void loaded(std::size_t sessions, std::uint64_t counted, std::optional<std::int64_t> grown,
              const std::optional<Session::Arena>& arena);

  /// Bytes of the model that nobody counts. Only after loaded(), like the next ones.
  std::uint64_t uncounted() const noexcept { return uncounted_; }
  /// Bytes of the model while it is awake.
  std::uint64_t taken() const noexcept { return taken_; }
  /// The levels that it may sleep at, before its sleep is measured. `seconds`: what a wake of closed sessions takes.
  Levels sleeps(double seconds) const;
  /// Bytes that it keeps asleep. `counted`: that it is known to have then.
  std::uint64_t kept(std::uint64_t counted) const;
  /// The part of the kept bytes that its sleep has shown.
  std::uint64_t shown(std::uint64_t kept) const noexcept { return kept - later_; }

 private:
  const bool on_gpu_;
  const std::uint64_t files_;
  const std::uint64_t most_kept_;
  std::uint64_t later_;
  std::uint64_t uncounted_ = 0;
  std::uint64_t taken_ = 0;
};

}  // namespace ortmulti
