#include "core/repository/footprint.hpp"

#include <algorithm>

#include "core/policy/numbers.hpp"

namespace ortmulti {

Footprint::Footprint(const Device& device, const ModelFiles& files, std::uint64_t most_kept)
    : on_gpu_(device.is_cuda()),
      files_(files.bytes),
      most_kept_(most_kept),
      later_(on_gpu_ && files.convolves ? *numbers::residency_cudnn_bytes : 0) {}

void Footprint::loaded(std::size_t sessions, std::uint64_t counted, std::optional<std::int64_t> grown,
                       const std::optional<Session::Arena>& arena) {
  later_ *= sessions;
  uncounted_ = grown ? static_cast<std::uint64_t>(std::max<std::int64_t>(0, *grown)) : most_kept_;
  std::uint64_t seen = on_gpu_ ? counted + uncounted_ : 0;
  if (!on_gpu_ && arena) {  // in the arenas are the weights that are kept in another form
    seen = std::max(files_, arena->used) + arena->most_used - std::min(arena->most_used, arena->used);
  }
  taken_ = std::max(files_, seen) + later_;
}

Footprint::Levels Footprint::sleeps(double seconds) const {
  Levels levels;
  for (std::size_t depth = 1; depth < sleep_levels.size(); ++depth) {
    const auto level = static_cast<SleepLevel>(depth);
    const bool closes = traits_of(level).frees_runners;
    if (closes || on_gpu_) {
      levels[level] = {0, closes ? seconds : 0.0};
    }
  }
  return levels;
}

std::uint64_t Footprint::kept(std::uint64_t counted) const {
  return later_ + std::min(taken_ - later_, counted + uncounted_);
}

}  // namespace ortmulti
