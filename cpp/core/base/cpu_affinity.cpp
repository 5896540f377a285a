#include "core/base/cpu_affinity.hpp"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <set>

#include "core/base/file.hpp"

namespace ortmulti {
namespace {

// The number that `text` is, or 0 for what is none, such as "max" and "-1".
double positive_number(const std::string& text) {
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  return end != text.c_str() && value > 0 ? value : 0;
}

std::vector<int> online() {
  std::vector<int> cpus(static_cast<std::size_t>(std::max(1L, sysconf(_SC_NPROCESSORS_CONF))));
  for (std::size_t i = 0; i < cpus.size(); ++i) {
    cpus[i] = static_cast<int>(i);
  }
  return cpus;
}

double quota_v2(const std::string& folder) {
  const std::vector<std::string> words = split_words(read_small_file(folder + "/cpu.max"));  // "max 100000": none
  const double period = words.size() == 2 ? positive_number(words[1]) : 0;
  return period > 0 ? positive_number(words[0]) / period : 0;
}

double quota_v1(const std::string& folder) {
  const double period = positive_number(read_small_file(folder + "/cpu.cfs_period_us"));
  return period > 0 ? positive_number(read_small_file(folder + "/cpu.cfs_quota_us")) / period : 0;
}

// Calls `quota` for `base` + each prefix of `path`: a parent's limit binds its children.
template <typename Quota>
double least_along(const std::string& base, std::string path, Quota quota) {
  double least = 0;
  for (;;) {
    if (const double here = quota(base + path); here > 0) {
      least = least > 0 ? std::min(least, here) : here;
    }
    const std::size_t slash = path.rfind('/');
    if (path.empty() || slash == std::string::npos) {
      return least;
    }
    path.erase(slash);
  }
}

}  // namespace

std::vector<int> affinity() {
  // The mask grows until the kernel's fits; 1 << 20 CPUs are beyond any machine.
  for (int size = 1024; size <= (1 << 20); size *= 2) {
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
  double least = 0;
  for (const std::string& line : split_lines(read_small_file(proc_cgroup))) {  // hierarchy:controllers:path
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
    double here = 0;
    if (controllers.empty()) {
      here = least_along(cgroup_root, path, quota_v2);
    } else if (("," + controllers + ",").find(",cpu,") != std::string::npos) {
      // The folder may name its controllers in another order than this file does; the kernel's link has one name.
      here = least_along(cgroup_root + "/" + controllers, path, quota_v1);
      if (here == 0) {
        here = least_along(cgroup_root + "/cpu", path, quota_v1);
      }
    }
    if (here > 0) {
      least = least > 0 ? std::min(least, here) : here;
    }
  }
  return least;
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

}  // namespace ortmulti
