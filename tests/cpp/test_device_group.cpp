// The sessions of one device in a pool, without a pool.

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <type_traits>
#include <vector>

#include "core/pool/device_group.hpp"
#include "fake_runner.hpp"

namespace ortmulti::tests {
namespace {

using State = Worker::State;

// A group of two sessions.
class DeviceGroups : public testing::Test {
 protected:
  void add(Worker& worker, const int& session, const std::optional<std::size_t>& at_first) {
    worker.session = &session;
    worker.runner = std::make_shared<FakeRunner>(group.device, worker.session);
    worker.group = &group;
    group.add(worker, at_first);
  }

  DeviceGroup::All all;
  DeviceGroup& group = *all.emplace_back(std::make_unique<DeviceGroup>(Device::cuda(0), all));
  const int one = 0;
  const int other = 0;
};

TEST_F(DeviceGroups, GivesTheSessionWithTheFewestRuns) {
  std::array<Worker, 3> workers;
  auto& [first, second, third] = workers;
  for (Worker& worker : workers) {
    add(worker, &worker == &third ? other : one, {});
  }
  EXPECT_EQ(group.stats().sessions, 2U);
  EXPECT_EQ(group.idle_worker(), &first);
  group.occupy(first, State::forming);
  group.occupy(first, State::running);
  EXPECT_EQ(group.busy(), 1U);
  EXPECT_EQ(group.idle_worker(), &third);
  group.occupy(third, State::given);
  EXPECT_EQ(group.idle_worker(), &second);
  group.occupy(second, State::given);
  EXPECT_EQ(group.idle_worker(), nullptr);
  group.release(first);
  group.release(first);
  EXPECT_EQ(group.busy(), 2U);
  EXPECT_TRUE(group.active());
  group.release(second);
  group.release(third);
  EXPECT_FALSE(group.active());
}

TEST_F(DeviceGroups, StartsThreadsOfAllSessionsAlike) {
  std::array<Worker, 6> workers;
  for (std::size_t i = 0; i < workers.size(); ++i) {
    workers.at(i).state = i % 3 == 0 ? State::idle : State::unstarted;
    add(workers.at(i), i < 3 ? one : other, 1);
  }
  EXPECT_EQ(group.next_to_start(2), nullptr);
  std::vector<Worker*> started;
  while (Worker* const next = group.next_to_start(5)) {
    next->state = State::idle;
    started.push_back(next);
  }
  EXPECT_EQ(started, (std::vector<Worker*>{&workers[1], &workers[4], &workers[2]}));
  EXPECT_EQ(group.next_to_start(12), &workers[5]);
}

TEST_F(DeviceGroups, EveryCountIsAddedUp) {
  const auto set = [](DeviceStats& stats, std::int64_t value) {
    DeviceStats::for_each_count([&](const std::string& /*name*/, auto count) {
      if constexpr (std::is_same_v<decltype(count), std::uint64_t DeviceStats::*>) {
        stats.*count = static_cast<std::uint64_t>(value);
      } else {
        for (std::int64_t i = 0; i < value; ++i) {
          (stats.*count).record(1);
        }
      }
    });
  };
  DeviceStats stats;
  DeviceStats more;
  set(stats, 2);
  set(more, 3);
  stats.add(more);
  std::set<std::string> names;
  DeviceStats::for_each_count([&](const std::string& name, auto count) {
    names.insert(name);
    if constexpr (std::is_same_v<decltype(count), std::uint64_t DeviceStats::*>) {
      EXPECT_EQ(stats.*count, 5U) << name;
    } else {
      EXPECT_EQ((stats.*count).count(), 5U) << name;
    }
  });
  EXPECT_EQ(names.size(), 17U);
}

}  // namespace
}  // namespace ortmulti::tests
