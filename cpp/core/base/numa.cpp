#include "core/base/numa.hpp"

#include <sched.h>

#include <algorithm>
#include <charconv>
#include <iterator>
#include <string_view>

#include "core/base/cpu_affinity.hpp"
#include "core/base/file.hpp"
#include "core/base/serial_thread.hpp"

namespace ortmulti {
namespace {

constexpr int max_cpus = 1 << 20;  // beyond any machine, and a bound for what a file may say

// A whole number; -1 for anything else.
int number(std::string_view text) {
  int value = -1;
  const auto result = std::from_chars(text.data(), text.data() + text.size(), value);
  return result.ec == std::errc() && result.ptr == text.data() + text.size() && value < max_cpus ? value : -1;
}

std::string one_word(const std::string& path) {
  const std::vector<std::string> words = split_words(read_small_file(path));
  return words.size() == 1 ? words[0] : "";
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
  std::sort(result.begin(), result.end());
  return result;
}

// As sysfs names it: small letters, a domain of four digits (NVML prints eight).
std::string sysfs_name(std::string id) {
  std::transform(id.begin(), id.end(), id.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; });
  const std::size_t domain = id.find(':');
  if (domain == 8 && id.compare(0, 4, "0000") == 0) {
    id.erase(0, 4);
  }
  return id.find('/') == std::string::npos ? id : "";
}

}  // namespace

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
  std::set_intersection(there.begin(), there.end(), allowed.begin(), allowed.end(), std::back_inserter(result));
  return result;
}

std::vector<int> refused_cpus(const std::vector<int>& cpus) {
  std::vector<int> refused;
  // The kernel knows: a thread may bind itself to CPUs that its creator is not bound to, but not beyond a cpuset.
  OwnThread().call([&] {
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
  const int size = *std::max_element(cpus.begin(), cpus.end()) + 1;
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
