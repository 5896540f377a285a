#include "core/ort/thread_group.hpp"

#include <pthread.h>

#include <algorithm>
#include <future>
#include <map>
#include <system_error>
#include <thread>
#include <utility>

#include "core/base/cpu_affinity.hpp"
#include "core/base/error.hpp"
#include "core/base/fork.hpp"
#include "core/base/text.hpp"

namespace ortmulti {
namespace {

constexpr std::size_t kernel_name_length = 15;

struct Work {
  OrtThreadWorkerFn function = nullptr;  // null: nothing to do
  void* parameter = nullptr;
};

}  // namespace

std::vector<int> cpus_for(const ThreadSettings& settings, const std::string& pci_bus_id) {
  if (!settings.cpus.empty()) {
    if (const std::vector<int> refused = refused_cpus(settings.cpus); !refused.empty()) {
      throw Error(ErrorKind::invalid_argument, "threads cannot be bound to CPU " + listed(refused, [](int cpu) {
                                                 return std::to_string(cpu);
                                               }) + ": this machine has no such CPU, or the process may not use it");
    }
    return settings.cpus;
  }
  if (settings.numa_node) {
    std::vector<int> cpus = cpus_of_node(*settings.numa_node);
    if (cpus.empty()) {
      throw Error(ErrorKind::invalid_argument, "threads cannot be bound to NUMA node " +
                                                   std::to_string(*settings.numa_node) +
                                                   ": this machine has no such node, or the process may use none of "
                                                   "its CPUs");
    }
    return cpus;
  }
  return settings.near_device && !pci_bus_id.empty() ? cpus_near(pci_bus_id) : std::vector<int>{};
}

std::string thread_name(const std::string& prefix, const std::string& owner, int number) {
  const std::string rest = "-" + owner + "-" + std::to_string(number);
  const std::size_t room = kernel_name_length - std::min(rest.size(), kernel_name_length);
  return (prefix.substr(0, room) + rest).substr(0, kernel_name_length);
}

struct ThreadGroup::Worker : NonCopyable {
  // Ends the thread if it was never given work.
  ~Worker() {
    if (thread.joinable()) {
      work.set_value({});
      thread.join();
    }
  }

  std::promise<Work> work;
  ThreadGroup* group = nullptr;
  std::thread thread;
};

// What ONNX Runtime has of all groups.
struct LiveWorkers {
  std::mutex mutex;
  std::map<OrtCustomThreadHandle, std::unique_ptr<ThreadGroup::Worker>> workers;
  std::vector<std::weak_ptr<const ThreadGroup>> groups;

  static LiveWorkers& get() { return process_singleton<LiveWorkers>(); }
};

ThreadGroup::ThreadGroup(const ThreadSettings& settings, std::string owner, std::vector<int> cpus)
    : name_prefix_(settings.name_prefix),
      owner_(std::move(owner)),
      cpus_(std::move(cpus)),
      generation_(fork_generation()) {}

std::shared_ptr<ThreadGroup> ThreadGroup::start(const ThreadSettings& settings, std::string owner,
                                                std::vector<int> cpus, int count) {
  // NOLINTNEXTLINE(cppcoreguidelines-owning-memory): the constructor is not std::make_shared's to call
  std::shared_ptr<ThreadGroup> group(new ThreadGroup(settings, std::move(owner), std::move(cpus)));
  try {
    for (int i = 0; i < count; ++i) {
      group->spare_.push_back(group->start_worker());
    }
  } catch (const std::system_error& error) {
    throw Error(ErrorKind::runtime_exception, "cannot start the " + std::to_string(count) + " threads of the pools (" +
                                                  group->owner_ + "): the system allowed " +
                                                  std::to_string(group->spare_.size()) + " (" + error.what() + ")");
  }
  std::ranges::reverse(group->spare_);
  LiveWorkers& live = LiveWorkers::get();
  const std::lock_guard lock(live.mutex);
  auto& groups = live.groups;
  std::erase_if(groups, [](const auto& each) { return each.expired(); });
  groups.push_back(group);
  return group;
}

ThreadGroup::~ThreadGroup() { dismiss_spare(); }

std::unique_ptr<ThreadGroup::Worker> ThreadGroup::start_worker() {
  auto worker = std::make_unique<Worker>();
  worker->group = this;
  const std::string name = thread_name(name_prefix_, owner_, started_ + 1);
  worker->thread = std::thread(
      [](std::future<Work> given) {
        const Work work = given.get();
        if (work.function != nullptr) {
          work.function(work.parameter);  // ONNX Runtime's, which throws nothing
        }
      },
      worker->work.get_future());
  ++started_;
  // From here, so that it holds before the thread has run.
  const pthread_t thread = worker->thread.native_handle();
  pthread_setname_np(thread, name.c_str());
  static_cast<void>(stay_on(cpus_, thread));  // CPUs may be taken from the process after they were checked
  return worker;
}

void ThreadGroup::dismiss_spare() noexcept {
  std::vector<std::unique_ptr<Worker>> spare;  // which end without the lock
  {
    const std::lock_guard lock(mutex_);
    spare.swap(spare_);
  }
}

OrtCustomThreadHandle ThreadGroup::give(OrtThreadWorkerFn work, void* parameter) {
  std::unique_ptr<Worker> worker;
  {
    const std::lock_guard lock(mutex_);
    if (spare_.empty()) {  // where ONNX Runtime was to find the number of threads
      worker = start_worker();
    } else {
      worker = std::move(spare_.back());
      spare_.pop_back();
    }
  }
  Worker& given = *worker;
  const auto handle = reinterpret_cast<OrtCustomThreadHandle>(&given);
  {
    LiveWorkers& live = LiveWorkers::get();
    const std::lock_guard lock(live.mutex);
    live.workers[handle] = std::move(worker);
  }
  created_.fetch_add(1);
  given.work.set_value({work, parameter});
  return handle;
}

// Called from C: null says that there is no thread, and `parameter` stays ONNX Runtime's.
OrtCustomThreadHandle ThreadGroup::create(void* group, OrtThreadWorkerFn work, void* parameter) {
  try {
    return static_cast<ThreadGroup*>(group)->give(work, parameter);
  } catch (...) {
    return nullptr;
  }
}

void ThreadGroup::join(OrtCustomThreadHandle handle) {
  std::unique_ptr<Worker> worker;
  {
    LiveWorkers& live = LiveWorkers::get();
    const std::lock_guard lock(live.mutex);
    const auto found = live.workers.find(handle);
    if (found == live.workers.end()) {
      return;  // joined before, or left to the parent process
    }
    worker = std::move(found->second);
    live.workers.erase(found);
  }
  if (worker->thread.get_id() == std::this_thread::get_id()) {
    worker->thread.detach();  // it ends when it has returned from here
  } else {
    worker->thread.join();
  }
  worker->group->joined_.fetch_add(1);
}

void ThreadGroup::apply_to(Ort::SessionOptions& options) {
  options.SetCustomCreateThreadFn(&ThreadGroup::create);
  options.SetCustomThreadCreationOptions(this);
  options.SetCustomJoinThreadFn(&ThreadGroup::join);
}

void ThreadGroup::apply_to(Ort::ThreadingOptions& options) {
  options.SetGlobalCustomCreateThreadFn(&ThreadGroup::create);
  options.SetGlobalCustomThreadCreationOptions(this);
  options.SetGlobalCustomJoinThreadFn(&ThreadGroup::join);
}

ThreadCounts ThreadGroup::counts() const {
  const int joined = joined_.load();
  const int created = created_.load();
  return {name_prefix_, owner_, cpus_, created, generation_ == fork_generation() ? joined : created};
}

std::vector<ThreadCounts> thread_counts() {
  std::vector<ThreadCounts> result;
  LiveWorkers& live = LiveWorkers::get();
  std::vector<std::shared_ptr<const ThreadGroup>> groups;  // freed without the lock
  {
    const std::lock_guard lock(live.mutex);
    for (const auto& each : live.groups) {
      groups.push_back(each.lock());
    }
  }
  for (const auto& group : groups) {
    if (group && group->counts().joined < group->counts().created) {
      result.push_back(group->counts());
    }
  }
  return result;
}

}  // namespace ortmulti
