#pragma once

#include <pthread.h>

#include <string>
#include <vector>

namespace ortmulti {

/// The CPUs of the memory node that a GPU is attached to, as far as this process may use them. Empty where that is not
/// known, makes no difference (one node) or leaves none. `pci_bus_id` as CUDA or NVML print it ("0000:18:00.0").
std::vector<int> cpus_near(const std::string& pci_bus_id, const std::string& sysfs = "/sys");

/// The CPUs of a memory node, as far as this process may use them; empty where there is no such node.
std::vector<int> cpus_of_node(int node, const std::string& sysfs = "/sys");

/// Those of these CPUs on which no thread of this process can run, whatever the calling one is bound to.
std::vector<int> refused_cpus(const std::vector<int>& cpus);

/// Binds a thread, by default the calling one, to these CPUs, so that memory that it touches first is theirs; false
/// where that is refused.
bool stay_on(const std::vector<int>& cpus, pthread_t thread = pthread_self());

}  // namespace ortmulti
