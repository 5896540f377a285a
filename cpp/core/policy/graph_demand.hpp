#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "core/base/recently_used.hpp"
#include "core/policy/numbers.hpp"

namespace ortmulti {

/// Which input shapes of a session repay a CUDA graph: those that come often, and make up a share of its runs. A graph
/// has sessions of its own. Making them disturbs the runs of other shapes, and they keep their memory. Without clock,
/// thread or lock.
class GraphDemand {
 public:
  /// `least_runs`: ordinary runs of a shape before its graph; 1: each shape is to have one, however rare it is.
  explicit GraphDemand(std::uint64_t least_runs = *numbers::graphs_runs_before_capture) : least_runs_(least_runs) {}

  /// Notes a run by a graph.
  void record_graph_run() noexcept { ++runs_; }
  /// Notes an ordinary run; `under_way` were at once, of all shapes. How many sessions the shape's graph is worth: of
  /// those under way, the share of this shape; 0: it is worth none yet.
  std::size_t record_run(const std::string& shape, std::size_t under_way);
  /// All runs so far.
  std::uint64_t runs() const noexcept { return runs_; }

  /// Its graph cannot be made now. Its runs count from 0, and twice as many are needed.
  void postpone(const std::string& shape);
  /// Forgets what was seen of a shape.
  void forget(const std::string& shape) { seen_.use(shape) = {}; }
  /// Notes that a shape can have no graph. Returns whether no other shape gets one either, since so many in a row could
  /// have none.
  bool refuse(const std::string& shape);
  bool refused(const std::string& shape) { return seen_.use(shape).refused; }
  /// A graph was made.
  void succeeded() noexcept { refusals_ = 0; }

 private:
  struct Seen {
    std::uint64_t runs = 0;
    std::uint64_t before = 0;  // runs of all shapes before the first of these
    std::size_t at_once = 0;   // most runs under way at once
    std::size_t postponed = 0;
    bool refused = false;
  };

  const std::uint64_t least_runs_;
  RecentlyUsed<Seen> seen_{*numbers::graphs_counted_shapes};
  std::uint64_t runs_ = 0;
  std::size_t refusals_ = 0;  // in a row
};

}  // namespace ortmulti
