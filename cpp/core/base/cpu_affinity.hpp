#pragma once

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

}  // namespace ortmulti
