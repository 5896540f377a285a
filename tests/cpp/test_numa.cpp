#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <thread>
#include <vector>

#include "core/base/cpu_affinity.hpp"
#include "test_support.hpp"

namespace ortmulti::tests {
namespace {

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
    EXPECT_NE(std::find(all.begin(), all.end(), cpu), all.end());
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
