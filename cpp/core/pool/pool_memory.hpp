#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "core/memory/device_memory.hpp"
#include "core/pool/pool_sleep.hpp"
#include "core/pool/runner.hpp"

namespace ortmulti {

/// The part of Pool for its runners, and the memory that their runs keep.
class PoolMemory : public PoolSleep, public HasMemory {
 public:
  /// The runners to warm up: of devices that take requests, as many as run at the same time. None after close().
  std::vector<std::shared_ptr<Runner>> runners() const;
  std::vector<std::shared_ptr<Session>> sessions(const Device& device) const;

  /// Frees the CUDA graphs that were made beside the device's sessions. Returns whether there were any.
  bool drop_graphs(const Device& device) const;
  /// Bytes of the device's memory that its sessions' arenas and CUDA graphs take; none if a session cannot tell.
  std::optional<std::uint64_t> memory_of_runs(const Device& device) const;
  /// And with the weights that its sessions share.
  std::uint64_t memory(const Device& device) const;
  /// Gives back memory of the device that no run needs now, while other runs go on; with `graphs`, first drop_graphs().
  /// A sleeping device gives back what its sessions keep for runs. Does nothing after close().
  void give_back(const Device& device, bool graphs) override;
  /// Gives back what Options::trim_after says.
  bool give_back_surplus() override;

 protected:
  using PoolSleep::PoolSleep;

 private:
  std::vector<std::shared_ptr<Runner>> runners_on(const Device& device) const ORTMULTI_REQUIRES(mutex_);
  std::vector<std::shared_ptr<Runner>> enter_for_runners(const Device& device) const ORTMULTI_EXCLUDES(mutex_);
  /// Gives back memory of the group's runners; their buffers in any case.
  void give_back_from(DeviceGroup& group, const std::vector<std::shared_ptr<Runner>>& runners, bool graphs,
                      std::optional<Session::Shrink> arenas) ORTMULTI_EXCLUDES(mutex_);

  Clock::time_point looked_ ORTMULTI_GUARDED_BY(mutex_);  // at what may be given back
};

}  // namespace ortmulti
