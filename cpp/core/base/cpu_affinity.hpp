#pragma once

#include <pthread.h>

#include <string>
#include <vector>

namespace ortmulti {

/// Physical cores that this process may use: those of its affinity mask, at most the CPU quota of its control
/// group (v1 or v2, rounded up), at least 1.
int usable_cores();

/// The CPUs that the calling thread may run on, in order; empty where the kernel does not say.
std::vector<int> affinity();

/// Physical cores among `cpus`, by the siblings that the kernel lists below `sysfs` ("/sys").
int physical_cores(const std::vector<int>& cpus, const std::string& sysfs);

/// The CPU quota in cores of the control group that `proc_cgroup` ("/proc/self/cgroup") names, below `cgroup_root`
/// ("/sys/fs/cgroup"): the least of it and its parents; 0 for no quota.
double cgroup_quota(const std::string& proc_cgroup, const std::string& cgroup_root);

/// Threads for each of `sessions` that run side by side on the CPU; 0 leaves the choice to ONNX Runtime, where one
/// session has the whole machine.
int threads_per_session(int sessions);

/// The CPUs of the memory node that a GPU is attached to, as far as this process may use them. Empty where that is not
/// known, makes no difference (one node) or leaves none. `pci_bus_id` as CUDA or NVML print it ("0000:18:00.0").
std::vector<int> cpus_near(const std::string& pci_bus_id, const std::string& sysfs = "/sys");

/// The CPUs of a memory node, as far as this process may use them; empty where there is no such node.
std::vector<int> cpus_of_node(int node, const std::string& sysfs = "/sys");

/// The CPUs of the list on which no thread of this process can run, whatever the calling thread is bound to.
std::vector<int> refused_cpus(const std::vector<int>& cpus);

/// Binds a thread, by default the calling one, to these CPUs, so that memory that it touches first is theirs; false
/// where that is refused.
bool stay_on(const std::vector<int>& cpus, pthread_t thread = pthread_self());

}  // namespace ortmulti
