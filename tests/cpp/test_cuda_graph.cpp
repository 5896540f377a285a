#include <gtest/gtest.h>

#include <cstddef>
#include <stdexcept>
#include <string>
#include <vector>

#include "core/cuda/graph.hpp"
#include "fake_cuda.hpp"
#include "test_support.hpp"

namespace ortmulti::tests {
namespace {

// What a driver was asked, and what it says of the nodes of the one graph that there is.
struct Graphs {
  std::vector<std::string> calls;
  CUresult end_capture = CUDA_SUCCESS;
  CUresult instantiate = CUDA_SUCCESS;
  std::vector<CUgraphNodeType> nodes{CU_GRAPH_NODE_TYPE_KERNEL};
  CUDA_MEMCPY3D copy{};  // NOLINT(bugprone-invalid-enum-default-initialization): what a test does not ask for
  unsigned pointer_type = CU_MEMORYTYPE_DEVICE;
};
// The driver's functions have no object.
Graphs& graphs() {
  static Graphs graphs;
  return graphs;
}

template <typename Handle>
Handle handle(std::size_t number) {
  return reinterpret_cast<Handle>(number);  // NOLINT(performance-no-int-to-ptr): it stands for one
}

CudaDriver table() {
  CudaDriver driver = FakeCuda::table();
  driver.stream_begin_capture = [](CUstream, CUstreamCaptureMode mode) {
    graphs().calls.emplace_back(mode == CU_STREAM_CAPTURE_MODE_THREAD_LOCAL ? "begin" : "begin otherwise");
    return CUDA_SUCCESS;
  };
  driver.stream_end_capture = [](CUstream, CUgraph* graph) {
    graphs().calls.emplace_back("end");
    *graph = graphs().end_capture == CUDA_SUCCESS ? handle<CUgraph>(1) : nullptr;
    return graphs().end_capture;
  };
  driver.graph_get_nodes = [](CUgraph, CUgraphNode* nodes, std::size_t* count) {
    *count = graphs().nodes.size();
    for (std::size_t i = 0; nodes != nullptr && i < *count; ++i) {
      nodes[i] = handle<CUgraphNode>(i);
    }
    return CUDA_SUCCESS;
  };
  driver.graph_node_get_type = [](CUgraphNode node, CUgraphNodeType* type) {
    *type = graphs().nodes.at(reinterpret_cast<std::size_t>(node));
    return CUDA_SUCCESS;
  };
  driver.graph_memcpy_node_get_params = [](CUgraphNode, CUDA_MEMCPY3D* copy) {
    *copy = graphs().copy;
    return CUDA_SUCCESS;
  };
  driver.pointer_get_attribute = [](void* data, CUpointer_attribute, CUdeviceptr) {
    *static_cast<unsigned*>(data) = graphs().pointer_type;
    return CUDA_SUCCESS;
  };
  driver.graph_instantiate = [](CUgraphExec* ready, CUgraph, unsigned long long) {
    *ready = handle<CUgraphExec>(2);
    return graphs().instantiate;
  };
  driver.graph_destroy = [](CUgraph) {
    graphs().calls.emplace_back("destroy");
    return CUDA_SUCCESS;
  };
  driver.graph_launch = [](CUgraphExec, CUstream) {
    graphs().calls.emplace_back("launch");
    return CUDA_SUCCESS;
  };
  driver.graph_exec_destroy = [](CUgraphExec) {
    graphs().calls.emplace_back("free");
    return CUDA_SUCCESS;
  };
  return driver;
}

class CudaGraphTest : public testing::Test {
 protected:
  CudaGraphTest() {
    FakeCuda::reset();
    graphs() = {};
    startup.make_current(0);
  }

  using Calls = std::vector<std::string>;

  CudaDriver driver = table();
  CudaStartup startup{&driver, ""};
};

TEST_F(CudaGraphTest, IsCapturedOnceAndLaunchedOften) {
  {
    const CudaGraph graph(startup, nullptr, [] { graphs().calls.emplace_back("work"); });
    graph.launch(nullptr);
    graph.launch(nullptr);
  }
  EXPECT_EQ(graphs().calls, (Calls{"begin", "work", "end", "destroy", "launch", "launch", "free"}));
}

TEST_F(CudaGraphTest, ACaptureEndsWhereTheWorkFails) {
  EXPECT_THROW(CudaGraph(startup, nullptr, [] { throw std::runtime_error("no"); }), std::runtime_error);
  EXPECT_EQ(graphs().calls, (Calls{"begin", "end", "destroy"}));
}

TEST_F(CudaGraphTest, ToldFromWorkThatFailsIsACaptureThatSomethingInvalidated) {
  graphs().end_capture = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  EXPECT_THROW(CudaGraph(startup, nullptr, [] {}), CaptureInvalidated);
  try {
    const CudaGraph graph(startup, nullptr, [] { throw std::runtime_error("CUBLAS failure 14"); });
    ADD_FAILURE();
  } catch (const CaptureInvalidated& error) {
    EXPECT_EQ(error.what(), std::string("capturing a CUDA graph: the capture was invalidated: CUBLAS failure 14"));
  }
}

TEST_F(CudaGraphTest, SaysThatItWasNoCapture) {
  graphs().end_capture = CUDA_ERROR_ILLEGAL_ADDRESS;
  EXPECT_TRUE(
      throws(ErrorKind::device, {"capturing a CUDA graph"}, [&] { const CudaGraph graph(startup, nullptr, [] {}); }));
  graphs().end_capture = CUDA_SUCCESS;
  graphs().instantiate = CUDA_ERROR_OUT_OF_MEMORY;
  graphs().calls.clear();
  EXPECT_TRUE(
      throws(ErrorKind::out_of_memory, {"instantiating"}, [&] { const CudaGraph graph(startup, nullptr, [] {}); }));
  EXPECT_EQ(graphs().calls, (Calls{"begin", "end", "destroy"}));
}

TEST_F(CudaGraphTest, RefusesWhatReadsTheHostsMemory) {
  const auto refused = [&] {
    graphs().calls.clear();
    const auto result =
        throws(ErrorKind::not_implemented, {"host"}, [&] { const CudaGraph graph(startup, nullptr, [] {}); });
    return result && graphs().calls.back() == "destroy";
  };
  graphs().nodes = {CU_GRAPH_NODE_TYPE_KERNEL, CU_GRAPH_NODE_TYPE_HOST};
  EXPECT_TRUE(refused());
  graphs().nodes = {CU_GRAPH_NODE_TYPE_MEMCPY};
  graphs().copy.srcMemoryType = CU_MEMORYTYPE_HOST;
  graphs().copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  EXPECT_TRUE(refused());
  graphs().copy.srcMemoryType = CU_MEMORYTYPE_DEVICE;
  graphs().copy.dstMemoryType = CU_MEMORYTYPE_UNIFIED;
  graphs().pointer_type = CU_MEMORYTYPE_HOST;
  EXPECT_TRUE(refused());
  graphs().pointer_type = CU_MEMORYTYPE_DEVICE;
  const CudaGraph graph(startup, nullptr, [] {});
}

}  // namespace
}  // namespace ortmulti::tests
