#include "core/pool/graph_shapes.hpp"

namespace ortmulti {

std::optional<GraphShapes::Outputs> GraphShapes::find(const std::string& key) {
  const std::lock_guard lock(mutex_);
  if (!entries_.has(key)) {
    return std::nullopt;
  }
  const Entry& entry = entries_.use(key);
  return entry.refused ? std::nullopt : std::optional(entry.outputs);
}

void GraphShapes::learn(const std::string& key, const std::vector<Ort::Value>& outputs) {
  const std::lock_guard lock(mutex_);
  if (given_up()) {
    return;
  }
  Entry& entry = entries_.use(key);
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
  Entry& entry = entries_.use(key);
  if (entry.refused) {  // by another request of these shapes, at the same time
    return false;
  }
  entry.refused = true;
  entry.outputs.clear();
  ++refusals_;
  if (given_up()) {
    entries_.clear();
  }
  return given_up();
}

}  // namespace ortmulti
