#include <gtest/gtest.h>
#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <filesystem>
#include <iostream>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "core/base/cpu_affinity.hpp"
#include "core/base/file.hpp"
#include "core/create/creation.hpp"
#include "core/ort/session.hpp"
#include "core/ort/thread_group.hpp"
#include "failing_threads.hpp"
#include "test_support.hpp"

namespace ortmulti::tests {
namespace {

// The names of this process's threads that begin so, and the CPUs that each may run on.
std::map<std::string, std::vector<int>> threads_called(const std::string& prefix) {
  std::map<std::string, std::vector<int>> found;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    const std::string id = task.path().filename().string();
    std::string name = read_small_file(task.path().string() + "/comm");
    name.erase(std::ranges::remove(name, '\n').begin(), name.end());
    cpu_set_t set;
    const bool there = sched_getaffinity(static_cast<pid_t>(std::stol(id)), sizeof(set), &set) == 0;
    for (int cpu = 0; name.starts_with(prefix) && there && cpu < CPU_SETSIZE; ++cpu) {
      if (CPU_ISSET(cpu, &set)) {
        found[name].push_back(cpu);
      }
    }
  }
  return found;
}

TEST(ThreadNames, KeepWhatTellsThreadsApart) {
  EXPECT_EQ(thread_name("ort", "cuda:0", 3), "ort-cuda:0-3");
  EXPECT_EQ(thread_name("inference-server", "cuda:10", 12), "infe-cuda:10-12");
  EXPECT_EQ(thread_name("ort", "a-name-of-any-length", 1).size(), 15U);
}

TEST(ThreadCpus, AreThoseAskedFor) {
  const std::vector<int> all = affinity();
  ASSERT_FALSE(all.empty());
  ThreadSettings settings;
  EXPECT_EQ(cpus_for(settings), std::vector<int>{});
  settings.cpus = {all.back()};
  EXPECT_EQ(cpus_for(settings), std::vector<int>{all.back()});
  settings.cpus = {};
  settings.near_device = true;
  EXPECT_EQ(cpus_for(settings), std::vector<int>{});            // no GPU
  EXPECT_EQ(cpus_for(settings, "nobody"), std::vector<int>{});  // not known
}

TEST(ThreadCpus, ThatAreNotThereAreRefused) {
  ThreadSettings settings;
  settings.cpus = {affinity().front(), 100'000};
  EXPECT_TRUE(throws(ErrorKind::invalid_argument, {"CPU 100000"}, [&] { cpus_for(settings); }));
  settings.cpus = {};
  settings.numa_node = 4000;
  EXPECT_TRUE(throws(ErrorKind::invalid_argument, {"NUMA node 4000"}, [&] { cpus_for(settings); }));
  EXPECT_EQ(refused_cpus({affinity().front(), -1, 1 << 20}), (std::vector<int>{-1, 1 << 20}));
}

TEST(ThreadCpus, CannotBeCheckedWithoutAThread) {
  const NoThreads none;
  EXPECT_TRUE(throws(ErrorKind::fail, {"thread"}, [] { refused_cpus({0}); }));
}

TEST(ThreadCpus, OfANodeAreThoseThatMayBeUsed) {
  const TemporaryFolder sysfs;
  const std::vector<int> all = affinity();
  sysfs.write("devices/system/node/node3/cpulist", "100000," + std::to_string(all.back()) + "\n");
  EXPECT_EQ(cpus_of_node(3, sysfs.path()), std::vector<int>{all.back()});
  EXPECT_EQ(cpus_of_node(2, sysfs.path()), std::vector<int>{});
}

TEST(ThreadsOfAGroup, ThatWereNotAskedForEnd) {
  const std::size_t before = thread_count();
  {
    const auto group = ThreadGroup::start({}, "cpu", {}, 3);
    EXPECT_EQ(thread_count(), before + 3);
    group->dismiss_spare();
    group->dismiss_spare();
    EXPECT_TRUE(threads_become(before));
    const auto another = ThreadGroup::start({}, "cpu", {}, 2);
    EXPECT_EQ(another->counts().created, 0);
  }
  EXPECT_TRUE(threads_become(before));
}

// Before any of them has run: they are bound to the one CPU that this thread keeps busy.
TEST(ThreadsOfAGroup, HaveTheirNamesAndCpusFromTheStart) {
  const int cpu = affinity().front();
  std::thread([cpu] {
    ASSERT_TRUE(stay_on({cpu}));
    ThreadSettings settings;
    settings.name_prefix = "early";
    const auto group = ThreadGroup::start(settings, "cpu", {cpu}, 4);
    std::map<std::string, std::vector<int>> expected;
    for (int number = 1; number <= 4; ++number) {
      expected["early-cpu-" + std::to_string(number)] = {cpu};
    }
    EXPECT_EQ(threads_called("early"), expected);
  }).join();
}

class ThreadsOfSessions : public RealSessions {};

TEST_F(ThreadsOfSessions, AreAsManyAsTheCoresWhereNoNumberIsGiven) {
  CreationRequest request;
  request.model = model("add");
  request.sessions = {{}};
  request.options.threads.emplace();
  const auto session = Creation::start(runtime(), request)->take().front();
  EXPECT_EQ(session->options().intra_op_num_threads, usable_cores());
  EXPECT_EQ(session->threads()->counts().created, usable_cores() - 1);
}

class ThreadsOfAProcess : public WithModels {};

TEST_F(ThreadsOfAProcess, ThatTheSystemDoesNotAllowAreAnError) {
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "sanitizers end a process that has no memory for a thread";
#endif
  expect_in_own_process([] {
    runtime().env();
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, std::size_t{1} << 50U);
    pthread_setattr_default_np(&attributes);
    SessionOptions options = with_threads(4);
    options.threads.emplace();
    const auto result = throws(ErrorKind::runtime_exception, {"cannot start the 3 threads", "allowed 0"},
                               [&] { make_session("add", options); });
    std::cerr << result.message();
    return static_cast<bool>(result);
  });
}

}  // namespace
}  // namespace ortmulti::tests
