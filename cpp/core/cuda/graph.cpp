#include "core/cuda/graph.hpp"

#include <cstddef>
#include <exception>
#include <new>
#include <string>
#include <vector>

#include "core/base/error.hpp"
#include "core/base/fork.hpp"
#include "core/base/scope_exit.hpp"
#include "core/cuda/memory.hpp"

namespace ortmulti {
namespace {

const char* const capturing = "capturing a CUDA graph";

// The driver knows where unified addresses lie. An address that it does not know is the host's.
bool on_device(const CudaDriver& driver, CUmemorytype type, const void* host, CUdeviceptr address) {
  if (type != CU_MEMORYTYPE_UNIFIED) {
    return type == CU_MEMORYTYPE_DEVICE;
  }
  const CUdeviceptr pointer = address != 0 ? address : to_address(host);
  unsigned found = 0;
  return driver.pointer_get_attribute(&found, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, pointer) == CUDA_SUCCESS &&
         found == CU_MEMORYTYPE_DEVICE;
}

}  // namespace

CudaStream::CudaStream(CudaStartup& startup, int device)
    : startup_(startup), device_(device), generation_(fork_generation()) {
  startup.check(startup.driver().stream_create(&stream_, CU_STREAM_NON_BLOCKING),
                "creating a stream on " + to_string(Device::cuda(device)));
}

CudaStream::~CudaStream() {
  if (generation_ == fork_generation()) {
    const ScopedContext current(startup_, device_, std::nothrow);
    static_cast<void>(startup_.driver().stream_synchronize(stream_));
    static_cast<void>(startup_.driver().stream_destroy(stream_));
  }
}

CudaEvent::CudaEvent(CudaStartup& startup, int device) : startup_(startup), generation_(fork_generation()) {
  startup.check(startup.driver().event_create(&event_, CU_EVENT_DISABLE_TIMING),
                "creating an event on " + to_string(Device::cuda(device)));
}

CudaEvent::~CudaEvent() {
  if (generation_ == fork_generation()) {
    static_cast<void>(startup_.driver().event_destroy(event_));
  }
}

CudaGraph::CudaGraph(CudaStartup& startup, CUstream stream, const std::function<void()>& work) : startup_(startup) {
  const CudaDriver& driver = startup.driver();
  CUgraph graph = nullptr;
  startup.check(driver.stream_begin_capture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL), capturing);
  const ScopeExit free([&] {
    if (graph != nullptr) {
      static_cast<void>(driver.graph_destroy(graph));
    }
  });
  std::exception_ptr failed;
  try {
    work();
  } catch (...) {
    failed = std::current_exception();
  }
  const CUresult ended = driver.stream_end_capture(stream, &graph);
  if (ended == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED) {
    throw CaptureInvalidated(
        failed ? kind_of(failed).value_or(ErrorKind::fail) : ErrorKind::fail,
        std::string(capturing) + ": the capture was invalidated" + (failed ? ": " + text_of(failed) : ""));
  }
  if (failed) {
    std::rethrow_exception(failed);
  }
  startup.check(ended, capturing);
  check_nodes(graph);
  startup.check(driver.graph_instantiate(&ready_, graph, 0), "instantiating a CUDA graph");
}

CudaGraph::~CudaGraph() { static_cast<void>(startup_.driver().graph_exec_destroy(ready_)); }

void CudaGraph::launch(CUstream stream) const {
  const CUresult result = startup_.driver().graph_launch(ready_, stream);
  if (result != CUDA_SUCCESS) {
    startup_.check(result, "launching a CUDA graph");
  }
}

void CudaGraph::check_nodes(CUgraph graph) const {
  const CudaDriver& driver = startup_.driver();
  std::size_t count = 0;
  startup_.check(driver.graph_get_nodes(graph, nullptr, &count), capturing);
  std::vector<CUgraphNode> nodes(count);
  startup_.check(driver.graph_get_nodes(graph, nodes.data(), &count), capturing);
  for (CUgraphNode node : nodes) {
    CUgraphNodeType type = CU_GRAPH_NODE_TYPE_EMPTY;
    startup_.check(driver.graph_node_get_type(node, &type), capturing);
    bool on_host = type == CU_GRAPH_NODE_TYPE_HOST;
    if (type == CU_GRAPH_NODE_TYPE_MEMCPY) {
      CUDA_MEMCPY3D copy;  // NOLINT(cppcoreguidelines-pro-type-member-init): the driver fills it in
      startup_.check(driver.graph_memcpy_node_get_params(node, &copy), capturing);
      on_host = !on_device(driver, copy.srcMemoryType, copy.srcHost, copy.srcDevice) ||
                !on_device(driver, copy.dstMemoryType, copy.dstHost, copy.dstDevice);
    }
    if (on_host) {
      throw Error(
          ErrorKind::not_implemented,
          "the run copies from or to the host's memory, or calls the host: a CUDA graph would repeat the values of "
          "the capture");
    }
  }
}

}  // namespace ortmulti
