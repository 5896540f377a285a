#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "core/pool/gpu_runner.hpp"
#include "core/pool/shape_graphs.hpp"

namespace ortmulti {

/// Runs a pool's requests with an ordinary session, or by a graph beside it that another runner has.
class OrdinaryGpuRunner : public GpuRunner {
 public:
  /// `graphs`: those beside the session; null: none.
  OrdinaryGpuRunner(std::shared_ptr<GpuSession> session, std::shared_ptr<ShapeGraphs> graphs);

  /// Several threads may call it; runs go one by one.
  void run(Request& request) override;
  GraphCounts graphs() const override { return shape_graphs_ ? shape_graphs_->counts() : GraphCounts(); }
  bool makes_graphs() const noexcept override { return shape_graphs_ && shape_graphs_->making(); }
  bool drop_graphs() override { return shape_graphs_ && shape_graphs_->drop_all(); }
  void free_buffers() override;
  /// More runners may run while a quarter of the GPU's memory is free.
  std::optional<std::string> why_no_more() noexcept override { return why_memory_is_short(); }

 private:
  /// Empty: a quarter of the GPU's memory is free.
  std::string why_memory_is_short() noexcept;
  void run_tensors(Request& request, Tensors& inputs) override;
  void run_ordinarily(Request& request, const Tensors& inputs);
  /// Runs by a graph of `shape_graphs_`, if there is one; else ordinarily. Has a graph made if the shapes come again.
  void run_with_graphs(Request& request, const Tensors& inputs);
  /// False if there is no graph, or it failed: then run the request ordinarily.
  bool run_by_graph(Request& request, const std::string& key);
  /// Frees staged inputs if free_buffers() asked for that. Only while nothing runs.
  void free_staged() noexcept;

  const std::shared_ptr<ShapeGraphs> shape_graphs_;
  std::mutex running_;
  std::atomic<bool> in_run_{false};
  std::atomic<bool> frees_staged_{false};
};

}  // namespace ortmulti
