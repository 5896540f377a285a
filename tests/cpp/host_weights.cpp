#include "host_weights.hpp"

#include <algorithm>
#include <utility>

namespace ortmulti::tests {

HostWeights::HostWeights(std::vector<FloatTensor> weights, Ort::MemoryInfo memory) : weights_(std::move(weights)) {
  for (FloatTensor& weight : weights_) {
    values_.push_back(Ort::Value::CreateTensor<float>(memory, weight.values.data(), weight.values.size(),
                                                      weight.shape.data(), weight.shape.size()));
  }
}

void HostWeights::add_to(Ort::SessionOptions& options) const {
  for (std::size_t i = 0; i < weights_.size(); ++i) {
    options.AddInitializer(weights_[i].name.c_str(), values_[i]);
  }
}

float* HostWeights::values(const std::string& name) {
  const auto found = std::ranges::find_if(weights_, [&](const auto& w) { return w.name == name; });
  return found->values.data();
}

FloatTensor diagonal(const std::string& name, float factor) {
  FloatTensor made{name, std::vector<float>(wide * wide), {wide, wide}};
  for (std::size_t i = 0; i < wide; ++i) {
    made.values[i * wide + i] = factor;
  }
  return made;
}

FloatTensor row(const std::string& name, float value) { return {name, std::vector<float>(wide, value), {wide}}; }

std::vector<FloatTensor> supplied_weights() { return {diagonal("w) because (w).", 2), row("b", 1)}; }

std::shared_ptr<Session> make_session_over(const std::string& model_name,
                                           const std::shared_ptr<const WeightStore>& weights,
                                           const SessionOptions& options) {
  return std::make_shared<Session>(runtime(), model(model_name), options, std::vector<Provider>{}, nullptr,
                                   [&weights] { return weights; });
}

std::vector<float> run_ones(Session& session, const Ort::RunOptions& options) {
  return run(session, {{"x", std::vector<float>(wide, 1), {1, wide}}}, "y", options);
}

}  // namespace ortmulti::tests
