#include "core/base/cpu_affinity.hpp"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <limits>
#include <numeric>
#include <set>
#include <string_view>
#include <utility>

#include "core/base/async_runs.hpp"
#include "core/base/file.hpp"
#include "core/base/text.hpp"

namespace ortmulti {
namespace {

std::vector<int> online() {
  std::vector<int> cpus(static_cast<std::size_t>(std::max(1L, sysconf(_SC_NPROCESSORS_CONF))));
  std::iota(cpus.begin(), cpus.end(), 0);
  return cpus;
}

constexpr double no_quota = std::numeric_limits<double>::infinity();

// Returns how many cores a quota allows: `no_quota` if it is no number, such as "max" and "-1".
double quota_of(const std::string& quota, const std::string& period) {
  const auto microseconds = [](const std::string& text) { return whole_number<std::uint64_t>(text).value_or(0); };
  const double cores = static_cast<double>(microseconds(quota)) / static_cast<double>(microseconds(period));
  return cores > 0 ? cores : no_quota;
}

std::string one_word(const std::string& path) {
  const std::vector<std::string> words = split_words(read_small_file(path));
  return words.size() == 1 ? words[0] : "";
}

double quota_v2(const std::string& folder) {
  const std::vector<std::string> words = split_words(read_small_file(folder + "/cpu.max"));  // "max 100000": none
  return words.size() == 2 ? quota_of(words[0], words[1]) : no_quota;
}

double quota_v1(const std::string& folder) {
  return quota_of(one_word(folder + "/cpu.cfs_quota_us"), one_word(folder + "/cpu.cfs_period_us"));
}

// Calls `quota` for `base` + each prefix of `path`: a parent's limit binds its children.
double least_along(const std::string& base, std::string path, const auto& quota) {
  double least = no_quota;
  for (;;) {
    least = std::min(least, quota(base + path));
    const std::size_t slash = path.rfind('/');
    if (path.empty() || slash == std::string::npos) {
      return least;
    }
    path.erase(slash);
  }
}

constexpr int max_cpus = 1 << 20;  // beyond any machine, and a bound for what a file may say

// A number of a CPU or a node; -1 for anything else.
int number(std::string_view text) {
  const int value = whole_number<int>(text).value_or(-1);
  return value < max_cpus ? value : -1;
}

// "0-3,8,10-11", sorted; nothing where any part of it is wrong.
std::vector<int> numbers(const std::string& list) {
  std::vector<int> result;
  for (std::size_t begin = 0; begin <= list.size() && !list.empty();) {
    const std::size_t end = std::min(list.find(',', begin), list.size());
    const std::string_view part = std::string_view(list).substr(begin, end - begin);
    const std::size_t dash = part.find('-');
    const int first = number(part.substr(0, dash));
    const int last = dash == std::string_view::npos ? first : number(part.substr(dash + 1));
    if (first < 0 || last < first) {
      return {};
    }
    for (int i = first; i <= last; ++i) {
      result.push_back(i);
    }
    begin = end + 1;
  }
  std::ranges::sort(result);
  return result;
}

// Returns a device's PCI address as sysfs has it: small letters, and a domain of four digits (NVML prints eight).
std::string sysfs_name(std::string id) {
  id = lower_case(std::move(id));
  const std::size_t domain = id.find(':');
  if (domain == 8 && id.starts_with("0000")) {
    id.erase(0, 4);
  }
  return id.find('/') == std::string::npos ? id : "";
}

}  // namespace

std::vector<int> affinity() {
  // The mask grows until the kernel's fits.
  for (int size = 1024; size <= max_cpus; size *= 2) {
    cpu_set_t* set = CPU_ALLOC(size);
    if (set == nullptr) {
      break;
    }
    const std::size_t bytes = CPU_ALLOC_SIZE(size);
    std::vector<int> cpus;
    const bool known = sched_getaffinity(0, bytes, set) == 0;
    for (int cpu = 0; known && cpu < size; ++cpu) {
      if (CPU_ISSET_S(cpu, bytes, set)) {
        cpus.push_back(cpu);
      }
    }
    CPU_FREE(set);
    if (known) {
      return cpus;
    }
  }
  return {};
}

int physical_cores(const std::vector<int>& cpus, const std::string& sysfs) {
  std::set<std::string> cores;
  for (const int cpu : cpus) {
    const std::string name = "cpu" + std::to_string(cpu);
    const std::string siblings =
        read_small_file(sysfs + "/devices/system/cpu/" + name + "/topology/thread_siblings_list");
    cores.insert(siblings.empty() ? name : siblings);
  }
  return static_cast<int>(cores.size());
}

double cgroup_quota(const std::string& proc_cgroup, const std::string& cgroup_root) {
  double least = no_quota;
  for (const std::string& line : split_words(read_small_file(proc_cgroup), "\n")) {  // hierarchy:controllers:path
    const std::size_t first = line.find(':');
    const std::size_t second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) {
      continue;
    }
    const std::string controllers = line.substr(first + 1, second - first - 1);
    std::string path = line.substr(second + 1);
    if (path == "/") {
      path.clear();
    }
    double here = no_quota;
    if (controllers.empty()) {
      here = least_along(cgroup_root, path, quota_v2);
    } else if (("," + controllers + ",").find(",cpu,") != std::string::npos) {
      // The folder may name its controllers in another order than this file does; the kernel's link has one name.
      here = least_along(cgroup_root + "/" + controllers, path, quota_v1);
      if (here == no_quota) {
        here = least_along(cgroup_root + "/cpu", path, quota_v1);
      }
    }
    least = std::min(least, here);
  }
  return least == no_quota ? 0 : least;
}

int usable_cores() {
  std::vector<int> cpus = affinity();
  if (cpus.empty()) {
    cpus = online();
  }
  int cores = std::max(1, physical_cores(cpus, "/sys"));
  if (const double quota = cgroup_quota("/proc/self/cgroup", "/sys/fs/cgroup"); quota > 0) {
    cores = std::min(cores, std::max(1, static_cast<int>(std::ceil(quota))));
  }
  return cores;
}

int threads_per_session(int sessions) {
  const int usable = usable_cores();
  if (sessions <= 1) {
    return usable < physical_cores(online(), "/sys") ? usable : 0;
  }
  return std::max(1, usable / sessions);
}

std::vector<int> cpus_near(const std::string& pci_bus_id, const std::string& sysfs) {
  if (numbers(one_word(sysfs + "/devices/system/node/online")).size() < 2) {
    return {};
  }
  const std::string name = sysfs_name(pci_bus_id);
  const int node = name.empty() ? -1 : number(one_word(sysfs + "/bus/pci/devices/" + name + "/numa_node"));
  if (node < 0) {  // -1 where the firmware does not say
    return {};
  }
  return cpus_of_node(node, sysfs);
}

std::vector<int> cpus_of_node(int node, const std::string& sysfs) {
  const std::vector<int> there =
      numbers(one_word(sysfs + "/devices/system/node/node" + std::to_string(node) + "/cpulist"));
  const std::vector<int> allowed = affinity();
  std::vector<int> result;
  std::ranges::set_intersection(there, allowed, std::back_inserter(result));
  return result;
}

std::vector<int> refused_cpus(const std::vector<int>& cpus) {
  std::vector<int> refused;
  // The kernel knows: a thread may bind itself to CPUs that its creator is not bound to, but not beyond a cpuset.
  AsyncRuns().call([&] {
    for (const int cpu : cpus) {
      if (cpu < 0 || cpu >= max_cpus || !stay_on({cpu})) {
        refused.push_back(cpu);
      }
    }
  });
  return refused;
}

bool stay_on(const std::vector<int>& cpus, pthread_t thread) {
  if (cpus.empty()) {
    return false;
  }
  const int size = std::ranges::max(cpus) + 1;
  cpu_set_t* set = CPU_ALLOC(size);
  if (set == nullptr) {
    return false;
  }
  const std::size_t bytes = CPU_ALLOC_SIZE(size);
  CPU_ZERO_S(bytes, set);
  for (const int cpu : cpus) {
    CPU_SET_S(cpu, bytes, set);
  }
  const bool bound = pthread_setaffinity_np(thread, bytes, set) == 0;
  CPU_FREE(set);
  return bound;
}

}  // namespace ortmulti
