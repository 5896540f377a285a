#include "core/pool/graph_shapes.hpp"

namespace ortmulti {

std::optional<GraphShapes::Outputs> GraphShapes::find(const std::string& key) {
  const std::lock_guard lock(mutex_);
  if (by_key_.count(key) == 0) {
    return std::nullopt;
  }
  const Entry& entry = use(key);
  return entry.refused ? std::nullopt : std::optional(entry.outputs);
}

void GraphShapes::learn(const std::string& key, const std::vector<Ort::Value>& outputs) {
  const std::lock_guard lock(mutex_);
  if (given_up()) {
    return;
  }
  Entry& entry = use(key);
  if (entry.refused) {
    return;
  }
  entry.outputs.clear();
  for (const Ort::Value& output : outputs) {
    const auto info = output.GetTensorTypeAndShapeInfo();
    entry.outputs.push_back({info.GetElementType(), info.GetShape()});
  }
}

void GraphShapes::captured() {
  const std::lock_guard lock(mutex_);
  if (!given_up()) {
    refusals_ = 0;
  }
}

bool GraphShapes::refuse(const std::string& key) {
  const std::lock_guard lock(mutex_);
  if (given_up()) {
    return false;
  }
  Entry& entry = use(key);
  if (entry.refused) {  // by another request of these shapes, at the same time
    return false;
  }
  entry.refused = true;
  entry.outputs.clear();
  ++refusals_;
  if (given_up()) {
    by_key_.clear();
    entries_.clear();
  }
  return given_up();
}

GraphShapes::Entry& GraphShapes::use(const std::string& key) {
  if (const auto found = by_key_.find(key); found != by_key_.end()) {
    entries_.splice(entries_.begin(), entries_, found->second);
    return entries_.front();
  }
  if (entries_.size() == most) {
    by_key_.erase(entries_.back().key);
    entries_.pop_back();
  }
  entries_.push_front({key, {}});
  by_key_.emplace(entries_.front().key, entries_.begin());
  return entries_.front();
}

}  // namespace ortmulti
