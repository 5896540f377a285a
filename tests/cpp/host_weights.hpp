#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/ort/weight_use.hpp"
#include "test_support.hpp"

namespace ortmulti::tests {

/// Columns and rows of the models "external", "supplied" and "branches".
inline constexpr std::size_t wide = 256;

/// Weights in this process's memory.
class HostWeights : public WeightStore {
 public:
  /// Of `memory`, whatever it says, the values are in host memory.
  explicit HostWeights(std::vector<FloatTensor> weights, Ort::MemoryInfo memory = host());

  const Device& device() const noexcept override { return device_; }
  void add_to(Ort::SessionOptions& options) const override;

  /// The values of one, to be changed in place.
  float* values(const std::string& name);

  static Ort::MemoryInfo host() { return Ort::MemoryInfo::CreateCpu(OrtDeviceAllocator, OrtMemTypeDefault); }

 private:
  Device device_;
  std::vector<FloatTensor> weights_;
  std::vector<Ort::Value> values_;
};

/// `factor` times the identity matrix.
FloatTensor diagonal(const std::string& name, float factor);
/// A row of `wide` equal values.
FloatTensor row(const std::string& name, float value);

/// The weights of the model "supplied": twice the identity matrix, and ones.
std::vector<FloatTensor> supplied_weights();

std::shared_ptr<Session> make_session_over(const std::string& model_name,
                                           const std::shared_ptr<const WeightStore>& weights,
                                           const SessionOptions& options = {});

/// The output "y" for an "x" of one row of ones.
std::vector<float> run_ones(Session& session, const Ort::RunOptions& options = Ort::RunOptions{nullptr});
/// What run_ones() gives with supplied_weights().
inline std::vector<float> result_of_ones() { return std::vector<float>(wide, 3); }

}  // namespace ortmulti::tests
