#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "core/base/mutex.hpp"
#include "core/base/non_copyable.hpp"
#include "core/cuda/device_sync_guard.hpp"

namespace ortmulti {

/// The shapes of which the nodes of a session on a GPU have plans. ONNX Runtime's Conv and other nodes keep one cuDNN
/// plan each, that of the last shapes (1.31.1). A run with other shapes makes new ones, and captures a stream for that.
/// So does a run of the shapes before, where one with other shapes has passed it in the same session meanwhile.
class PlannedShapes : NonCopyable {
 public:
  /// A run, from before it begins to its end, in one thread.
  class Run : NonCopyable {
   public:
    /// `shapes`: those of its inputs, by add_shape(); 0: it captures nothing.
    Run(PlannedShapes& of, std::uint64_t shapes) : of_(of), shapes_(shapes) {}
    ~Run();

    /// Whether it would make plans if it began now. Then it needs a guard.
    bool makes_plans();
    /// Kept up to its end. A run of known shapes gets that of a run which makes plans beside it.
    std::shared_ptr<const DeviceSyncGuard> guard;
    /// false: it makes plans now, as it did not when makes_plans() was asked last.
    bool begin();
    void succeeded() { succeeded_ = true; }

   private:
    PlannedShapes& of_;
    const std::uint64_t shapes_;
    bool makes_plans_ = false;
    bool begun_ = false;
    bool succeeded_ = false;
    bool beside_others_ = false;  // beside runs of other shapes, at any time
  };

 private:
  Mutex mutex_;
  std::vector<Run*> under_way_ ORTMULTI_GUARDED_BY(mutex_);
  std::uint64_t shapes_ ORTMULTI_GUARDED_BY(mutex_) = 0;  // 0: of none, or the nodes differ
};

}  // namespace ortmulti
