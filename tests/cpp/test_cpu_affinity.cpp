#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "core/base/cpu_affinity.hpp"
#include "test_support.hpp"

namespace ortmulti::tests {
namespace {

TEST(PhysicalCores, AreCountedOnceForTheirSiblings) {
  const TemporaryFolder sysfs;
  const auto set = [&](int cpu, const std::string& siblings) {
    sysfs.write("devices/system/cpu/cpu" + std::to_string(cpu) + "/topology/thread_siblings_list", siblings);
  };
  set(0, "0,4\n");
  set(4, "0,4\n");
  set(1, "1,5\n");
  set(5, "1,5\n");
  set(2, "2-3\n");
  set(3, "2-3\n");
  const std::string& root = sysfs.path();
  EXPECT_EQ(physical_cores({0, 1, 2, 3, 4, 5}, root), 3);
  EXPECT_EQ(physical_cores({0, 4}, root), 1);
  EXPECT_EQ(physical_cores({4, 1}, root), 2);
  EXPECT_EQ(physical_cores({}, root), 0);
}

TEST(PhysicalCores, WithoutATopologyEveryCpuIsOne) {
  const TemporaryFolder sysfs;
  EXPECT_EQ(physical_cores({0, 1, 7}, sysfs.path()), 3);
  EXPECT_EQ(physical_cores({0, 1, 7}, sysfs / "nothing"), 3);
}

class CgroupQuota : public testing::Test {
 protected:
  double quota(const std::string& proc_cgroup) const {
    return cgroup_quota(folder.write("proc", proc_cgroup), folder / "cgroup");
  }
  void v2(const std::string& group, const std::string& text) const {
    folder.write("cgroup" + group + "/cpu.max", text);
  }
  void v1(const std::string& group, const std::string& quota, const std::string& period) const {
    folder.write("cgroup/" + group + "/cpu.cfs_quota_us", quota);
    folder.write("cgroup/" + group + "/cpu.cfs_period_us", period);
  }

  TemporaryFolder folder;
};

TEST_F(CgroupQuota, OfTheSecondVersion) {
  v2("/work", "150000 100000\n");
  EXPECT_DOUBLE_EQ(quota("0::/work\n"), 1.5);
  EXPECT_DOUBLE_EQ(quota("0::/other\n"), 0);
}

TEST_F(CgroupQuota, OfTheRootAsAContainerSeesIt) {
  v2("", "50000 100000\n");
  EXPECT_DOUBLE_EQ(quota("0::/\n"), 0.5);
  EXPECT_DOUBLE_EQ(quota("0::/../elsewhere\n"), 0.5);
}

TEST_F(CgroupQuota, IsTheLeastOfAllParents) {
  v2("/a", "200000 100000\n");
  v2("/a/b", "max 100000\n");
  v2("/a/b/c", "300000 100000\n");
  v2("/a/b/d", "100000 100000\n");
  EXPECT_DOUBLE_EQ(quota("0::/a/b/c\n"), 2);
  EXPECT_DOUBLE_EQ(quota("0::/a/b/d\n"), 1);
  EXPECT_DOUBLE_EQ(quota("0::/a/b\n"), 2);
}

TEST_F(CgroupQuota, OfTheFirstVersion) {
  v1("cpu,cpuacct/docker/x", "250000\n", "100000\n");
  EXPECT_DOUBLE_EQ(quota("5:memory:/docker/x\n4:cpu,cpuacct:/docker/x\n"), 2.5);
  EXPECT_DOUBLE_EQ(quota("4:cpuset:/docker/x\n3:cpuacct:/docker/x\n"), 0);
}

TEST_F(CgroupQuota, OfTheFirstVersionWithoutLimit) {
  v1("cpu/docker", "-1\n", "100000\n");
  EXPECT_DOUBLE_EQ(quota("4:cpu:/docker\n"), 0);
  v1("cpu", "400000\n", "100000\n");
  EXPECT_DOUBLE_EQ(quota("4:cpu:/docker\n"), 4);
}

TEST_F(CgroupQuota, IsFoundWhereControllersAreNamedInAnotherOrder) {
  v1("cpu,cpuacct", "300000\n", "100000\n");
  std::filesystem::create_directory_symlink("cpu,cpuacct", folder / "cgroup/cpu");
  EXPECT_DOUBLE_EQ(quota("4:cpuacct,cpu:/\n"), 3);
}

TEST_F(CgroupQuota, OfBothVersionsIsTheLeast) {
  v2("", "300000 100000\n");
  v1("cpu", "200000\n", "100000\n");
  EXPECT_DOUBLE_EQ(quota("1:cpu:/\n0::/\n"), 2);
  EXPECT_DOUBLE_EQ(quota("0::/\n1:cpu:/\n"), 2);
}

TEST_F(CgroupQuota, IgnoresWhatItCannotRead) {
  for (const char* text : {"", "max", "max 100000", "100000", "100000 0", "0 100000", "-1 100000", "x y", "\n\n"}) {
    v2("/g", text);
    EXPECT_DOUBLE_EQ(quota("0::/g\n"), 0) << "'" << text << "'";
  }
  v2("/g", "100000 100000");
  for (const char* text : {"", "\n", "0", "0:", ":", "::", "0::", "0:/g\n", "garbage\n\xff\xfe\n", "1:cpu:/g\n"}) {
    EXPECT_DOUBLE_EQ(quota(text), 0) << "'" << text << "'";
  }
  EXPECT_DOUBLE_EQ(quota("garbage\n0::/g\n"), 1);
  EXPECT_DOUBLE_EQ(cgroup_quota(folder / "nothing", folder / "cgroup"), 0);
}

// In a thread of its own, which the mask binds alone.
template <typename Call>
void on_one_cpu(Call call) {
  std::thread([&call] {
    ASSERT_TRUE(stay_on({affinity().front()}));
    call();
  }).join();
}

int all_physical_cores() {
  std::vector<int> cpus(static_cast<std::size_t>(sysconf(_SC_NPROCESSORS_CONF)));
  std::iota(cpus.begin(), cpus.end(), 0);
  return physical_cores(cpus, "/sys");
}

TEST(UsableCores, AreThoseOfTheAffinityMask) {
  const int unbound = usable_cores();
  EXPECT_GE(unbound, 1);
  EXPECT_LE(unbound, all_physical_cores());
  on_one_cpu([] { EXPECT_EQ(usable_cores(), 1); });
  EXPECT_EQ(usable_cores(), unbound);
}

TEST(ThreadsPerSession, ShareTheCores) {
  const int cores = usable_cores();
  EXPECT_EQ(threads_per_session(1), cores == all_physical_cores() ? 0 : cores);
  EXPECT_EQ(threads_per_session(2), std::max(1, cores / 2));
  EXPECT_EQ(threads_per_session(cores + 1), 1);
  EXPECT_EQ(threads_per_session(100000), 1);
}

TEST(ThreadsPerSession, OneSessionOnAPartOfTheMachineKeepsToIt) {
  on_one_cpu([] {
    EXPECT_EQ(threads_per_session(1), all_physical_cores() > 1 ? 1 : 0);
    EXPECT_EQ(threads_per_session(4), 1);
  });
}

class CpusNear : public testing::Test {
 protected:
  CpusNear() {
    nodes("0-1\n");
    cpus(0, "100000-100001\n");
    cpus(1, "0-1023\n");  // what this process may use is among them
    gpu("0000:18:00.0", "1\n");
  }
  void nodes(const std::string& text) const { sysfs.write("devices/system/node/online", text); }
  void cpus(int node, const std::string& text) const {
    sysfs.write("devices/system/node/node" + std::to_string(node) + "/cpulist", text);
  }
  void gpu(const std::string& id, const std::string& node) const {
    sysfs.write("bus/pci/devices/" + id + "/numa_node", node);
  }
  std::vector<int> near(const std::string& id = "0000:18:00.0") const { return cpus_near(id, sysfs.path()); }

  TemporaryFolder sysfs;
  std::vector<int> all = affinity();
};

TEST_F(CpusNear, AreThoseOfItsNode) {
  ASSERT_FALSE(all.empty());
  EXPECT_EQ(near(), all);
  cpus(1, std::to_string(all.back()) + ",100000,5000-5005\n");
  EXPECT_EQ(near(), std::vector<int>{all.back()});
}

TEST_F(CpusNear, AreFoundByAnySpellingOfTheAddress) {
  gpu("0000:af:00.0", "1\n");
  EXPECT_EQ(near("0000:AF:00.0"), all);
  EXPECT_EQ(near("00000000:AF:00.0"), all);
  EXPECT_EQ(near("00010000:af:00.0"), std::vector<int>{});
}

TEST_F(CpusNear, AreNoneWhereNoneMayBeUsed) {
  cpus(1, "100000-100003\n");
  EXPECT_EQ(near(), std::vector<int>{});
}

TEST_F(CpusNear, MakeNoDifferenceOnOneNode) {
  for (const char* online : {"0\n", "1", "", "x", "0-", "1-0", "-1"}) {
    nodes(online);
    EXPECT_EQ(near(), std::vector<int>{}) << online;
  }
  nodes("0,1");
  EXPECT_EQ(near(), all);
}

TEST_F(CpusNear, AreUnknownWhereTheKernelDoesNotSay) {
  EXPECT_EQ(near("0000:19:00.0"), std::vector<int>{});
  EXPECT_EQ(near(""), std::vector<int>{});
  EXPECT_EQ(near("../devices/0000:18:00.0"), std::vector<int>{});
  for (const char* node : {"-1\n", "", "7\n", "one\n", "1 1\n", "99999999999999999999\n"}) {
    gpu("0000:18:00.0", node);
    EXPECT_EQ(near(), std::vector<int>{}) << node;
  }
  gpu("0000:18:00.0", "1\n");
  for (const char* list : {"", "\n", "0-x", "0--1", "0,,1", ",", "0-99999999999", "3-1", "0 1"}) {
    cpus(1, list);
    EXPECT_EQ(near(), std::vector<int>{}) << list;
  }
  EXPECT_EQ(cpus_near("0000:18:00.0", sysfs / "nothing"), std::vector<int>{});
}

TEST_F(CpusNear, OfThisMachineAreUsable) {
  for (const int cpu : cpus_near("0000:18:00.0")) {
    EXPECT_NE(std::ranges::find(all, cpu), all.end());
  }
}

TEST(StayOn, BindsTheThreadAlone) {
  const std::vector<int> all = affinity();
  std::thread([&] {
    EXPECT_TRUE(stay_on({all.back()}));
    EXPECT_EQ(affinity(), std::vector<int>{all.back()});
    EXPECT_TRUE(stay_on(all));
    EXPECT_EQ(affinity(), all);
    EXPECT_FALSE(stay_on({}));
    EXPECT_FALSE(stay_on({1 << 19}));
    EXPECT_EQ(affinity(), all);
  }).join();
  EXPECT_EQ(affinity(), all);
}

}  // namespace
}  // namespace ortmulti::tests
