#include "core/pool/captured_session.hpp"

#include <cstddef>
#include <utility>

#include "core/base/error.hpp"
#include "core/cuda/memory.hpp"
#include "core/cuda/startup.hpp"
#include "core/ort/library.hpp"
#include "core/ort/value.hpp"

namespace ortmulti {
namespace {

const char* const launching = "launching a CUDA graph";

bool is_plain_tensor(const ValueInfo& declared) {
  return declared.is_tensor && declared.element_type != ONNX_TENSOR_ELEMENT_DATA_TYPE_STRING;
}

void check_graph_holds(const std::vector<ValueInfo>& values, const std::vector<bool>& on_device, const char* what,
                       const std::string& model) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    const ValueInfo& value = values[i];
    if (!is_plain_tensor(value) || !on_device[i]) {
      throw Error(ErrorKind::invalid_argument, model + " cannot be run as a CUDA graph: the " + what + " '" +
                                                   value.name + "' is " + value.type +
                                                   (is_plain_tensor(value) ? " in the CPU's memory" : ""));
    }
  }
}

}  // namespace

void OneShape::use(const std::string& key) {
  const MutexLock lock(mutex_);
  if (key_.empty()) {
    key_ = key;
  } else if (key_ != key) {
    throw Error(ErrorKind::fail, "a session that captures CUDA graphs runs inputs of one shape only");
  }
}

CapturedSession::CapturedSession(std::shared_ptr<Session> session) : GpuSession(std::move(session)) {
  Session& own = *this->session();
  const auto placement = own.placement();
  if (!placement) {
    throw Error(ErrorKind::not_implemented,
                "CUDA graphs need ONNX Runtime 1.23 or newer, which says where inputs are read");
  }
  check_graph_holds(own.inputs(), placement->inputs_on_device, "input", own.model());
  check_graph_holds(own.outputs(), placement->outputs_on_device, "output", own.model());
  CudaStartup& startup = CudaStartup::instance();
  const ScopedContext current(startup, own.device().index);
  launched_ = std::make_unique<CudaEvent>(startup, own.device().index);
}

void CapturedSession::in_thread(const std::function<void(const Session::Lock& open)>& work) {
  const std::lock_guard lock(thread_mutex_);
  const auto alone = [&] {
    const Unlogged tried;
    CudaStartup& startup = CudaStartup::instance();
    const ScopedContext current(startup, session()->device().index);
    const auto open = session()->lock_for_use();
    const std::lock_guard running(slot_);
    startup.check(launched_->wait(), launching);
    work(open);
  };
  if (threads_.empty()) {
    session()->in_own_thread(alone);
  } else {
    threads_.back()->call(alone);
  }
}

void CapturedSession::renew_thread() {
  auto thread = std::make_unique<AsyncRuns>();
  thread->call([] {});  // an Error where it cannot start
  const std::lock_guard lock(thread_mutex_);
  threads_.push_back(std::move(thread));
}

LaunchTimes::Launch CapturedSession::launch(const CudaGraph& graph, CUstream stream, const void* shape) {
  const CudaStartup& startup = CudaStartup::instance();
  const CudaDriver& driver = startup.driver();
  const std::lock_guard running(slot_);
  startup.check(driver.stream_wait_event(stream, launched_->get(), 0), launching);
  graph.launch(stream);
  startup.check(driver.event_record(launched_->get(), stream), launching);
  const MutexLock lock(launch_times_mutex_);
  return launch_times_.begin(LaunchTimes::Clock::now(), shape);
}

void CapturedSession::end_launch(const LaunchTimes::Launch& launch,
                                 std::optional<LaunchTimes::Clock::time_point> woke) {
  const MutexLock lock(launch_times_mutex_);
  launch_times_.end(LaunchTimes::Clock::now(), launch, woke);
}

}  // namespace ortmulti
