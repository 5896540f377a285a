#include "core/ort/planned_shapes.hpp"

#include <algorithm>

namespace ortmulti {

bool PlannedShapes::Run::makes_plans() {
  const MutexLock lock(of_.mutex_);
  makes_plans_ = shapes_ != 0 && of_.shapes_ != shapes_;
  return makes_plans_;
}

bool PlannedShapes::Run::begin() {
  if (shapes_ == 0) {
    return true;
  }
  const MutexLock lock(of_.mutex_);
  if (!makes_plans_ && of_.shapes_ != shapes_) {
    return false;
  }
  of_.under_way_.push_back(this);
  begun_ = true;
  if (makes_plans_) {
    of_.shapes_ = 0;
  }
  for (Run* const other : of_.under_way_) {
    if (other->shapes_ != shapes_) {
      other->beside_others_ = beside_others_ = true;
    }
    if (makes_plans_ && other->guard == nullptr) {
      other->guard = guard;
    }
  }
  return true;
}

PlannedShapes::Run::~Run() {
  if (begun_) {
    const MutexLock lock(of_.mutex_);
    std::erase(of_.under_way_, this);
    if (succeeded_ && !beside_others_) {
      of_.shapes_ = shapes_;
    }
  }
}

}  // namespace ortmulti
