#include <dirent.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "core/base/cpu_affinity.hpp"
#include "core/base/file.hpp"
#include "core/create/creation.hpp"
#include "core/ort/library.hpp"
#include "core/ort/session.hpp"
#include "core/ort/thread_group.hpp"
#include "failing_threads.hpp"
#include "loading.hpp"
#include "test_support.hpp"

namespace ortmulti::tests {
namespace {

// The names of this process's threads that begin so, and the CPUs that each may run on.
std::map<std::string, std::vector<int>> threads_called(const std::string& prefix) {
  std::map<std::string, std::vector<int>> found;
  DIR* tasks = opendir("/proc/self/task");
  for (const dirent* entry = readdir(tasks); entry != nullptr; entry = readdir(tasks)) {
    std::string name = read_small_file("/proc/self/task/" + std::string(entry->d_name) + "/comm");
    name.erase(std::remove(name.begin(), name.end(), '\n'), name.end());
    cpu_set_t set;
    const bool there =
        sched_getaffinity(static_cast<pid_t>(std::strtol(entry->d_name, nullptr, 10)), sizeof(set), &set) == 0;
    for (int cpu = 0; name.rfind(prefix, 0) == 0 && there && cpu < CPU_SETSIZE; ++cpu) {
      if (CPU_ISSET(cpu, &set)) {
        found[name].push_back(cpu);
      }
    }
  }
  closedir(tasks);
  return found;
}

SessionOptions with_threads(int intra_op, ThreadSettings settings) {
  SessionOptions options;
  options.intra_op_num_threads = intra_op;
  options.threads = std::move(settings);
  return options;
}

bool is_counted(const std::string& owner) {
  const std::vector<ThreadCounts> counts = thread_counts();
  return std::any_of(counts.begin(), counts.end(), [&](const auto& each) { return each.owner == owner; });
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

TEST_F(ThreadsOfSessions, AreNamedBoundCountedAndJoined) {
  runtime().env();  // which has a thread of its own
  const std::size_t before = thread_count();
  ThreadSettings settings;
  settings.name_prefix = "unit";
  settings.cpus = {affinity().back()};
  const auto session = make_session("add", with_threads(4, settings));
  EXPECT_EQ(run_add(*session), sum_of_add());
  const std::vector<int> cpus = {affinity().back()};
  const std::map<std::string, std::vector<int>> expected = {
      {"unit-cpu-1", cpus}, {"unit-cpu-2", cpus}, {"unit-cpu-3", cpus}};
  EXPECT_EQ(threads_called("unit"), expected);
  ASSERT_TRUE(session->threads());
  EXPECT_EQ(session->threads()->counts().created, 3);
  EXPECT_EQ(session->threads()->counts().joined, 0);
  EXPECT_TRUE(is_counted("cpu"));
  const auto handle = session->share();
  session->close();
  EXPECT_EQ(handle->threads()->counts().joined, 0);  // another handle has it
  handle->close();
  handle->close();
  EXPECT_EQ(session->threads()->counts().joined, 3);
  EXPECT_FALSE(is_counted("cpu"));
  EXPECT_TRUE(threads_become(before));
}

TEST_F(ThreadsOfSessions, AreOfBothPools) {
  SessionOptions options = with_threads(3, {});
  options.execution_mode = ORT_PARALLEL;
  options.inter_op_num_threads = 2;
  const auto session = make_session("add", options);
  EXPECT_EQ(run_add(*session), sum_of_add());
  EXPECT_EQ(session->threads()->counts().created, 3);
  session->close();
  EXPECT_EQ(session->threads()->counts().joined, 3);
}

TEST_F(ThreadsOfSessions, MayBeNone) {
  const auto session = make_session("add", with_threads(1, {}));
  EXPECT_EQ(run_add(*session), sum_of_add());
  EXPECT_EQ(session->threads()->counts().created, 0);
  EXPECT_EQ(make_session("add")->threads(), nullptr);
}

TEST_F(ThreadsOfSessions, AreAsManyAsTheCoresWhereNoNumberIsGiven) {
  CreationRequest request;
  request.model = model("add");
  request.sessions = {{}};
  request.options.threads.emplace();
  const auto session = Creation::start(runtime(), request)->take().front();
  EXPECT_EQ(session->options().intra_op_num_threads, usable_cores());
  EXPECT_EQ(session->threads()->counts().created, usable_cores() - 1);
}

TEST_F(ThreadsOfSessions, AreJoinedWhenTheCreationFails) {
  runtime().env();
  const std::size_t before = thread_count();
  SessionOptions options = with_threads(4, {});
  options.optimized_model_filepath = "/nowhere/optimized.onnx";  // written when the pools are there
  EXPECT_THROW(make_session("add", options), Error);
  EXPECT_FALSE(is_counted("cpu"));
  EXPECT_TRUE(threads_become(before));
}

TEST_F(ThreadsOfSessions, AreCheckedBeforeThereIsAny) {
  CreationRequest request;
  request.model = model("add");
  request.sessions = {{}};
  request.options.threads.emplace();
  request.options.threads->cpus = {100'000};
  EXPECT_TRUE(throws(ErrorKind::invalid_argument, {"CPU 100000"}, [&] { Creation::start(runtime(), request); }));
}

TEST_F(ThreadsOfSessions, StayWithTheParent) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "ThreadSanitizer lets no forked child start threads";
#endif
  const auto session = make_session("add", with_threads(2, {}));
  EXPECT_TRUE(in_forked_child([&] {
    const ThreadCounts counts = session->threads()->counts();
    session->close();
    const auto own = make_session("add", with_threads(2, {}));
    return counts.joined == counts.created && run_add(*own) == sum_of_add() && thread_counts().size() == 1;
  }));
  EXPECT_EQ(session->threads()->counts().joined, 0);
  EXPECT_EQ(run_add(*session), sum_of_add());
}

// In a process of its own.
class ThreadsOfAProcess : public testing::Test {
 protected:
  ThreadsOfAProcess() { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
  void SetUp() override {
    if (const std::string missing = missing_environment(); !missing.empty()) {
      GTEST_SKIP() << missing;
    }
  }
};

TEST_F(ThreadsOfAProcess, ThatTheSystemDoesNotAllowAreAnError) {
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "sanitizers end a process that has no memory for a thread";
#endif
  EXPECT_EXIT(
      {
        runtime().env();
        pthread_attr_t attributes;
        pthread_attr_init(&attributes);
        pthread_attr_setstacksize(&attributes, std::size_t{1} << 50U);
        pthread_setattr_default_np(&attributes);
        const auto result = throws(ErrorKind::runtime_exception, {"cannot start the 3 threads", "allowed 0"},
                                   [] { make_session("add", with_threads(4, {})); });
        std::cerr << result.message();
        _exit(result ? 0 : 1);
      },
      testing::ExitedWithCode(0), "");
}

TEST_F(ThreadsOfAProcess, AreTheGlobalPoolsToo) {
  EXPECT_EXIT(
      {
        GlobalThreadPools pools;
        pools.intra_op_num_threads = 3;
        pools.inter_op_num_threads = 2;
        pools.threads.emplace();
        pools.threads->name_prefix = "all";
        pools.threads->cpus = {affinity().front()};
        OnnxRuntime::set_global_thread_pools(pools);
        CreationRequest request;
        request.model = model("add");
        request.sessions = {{}};
        request.options.use_per_session_threads = false;
        const auto session = Creation::start(runtime(), request)->take().front();
        const bool good = run_add(*session) == sum_of_add() && threads_called("all-global").size() == 3 &&
                          thread_counts().size() == 1 && thread_counts().front().owner == "global" &&
                          thread_counts().front().created == 3 && !session->threads();
        session->close();
        _exit(good && thread_counts().front().joined == 0 ? 0 : 1);
      },
      testing::ExitedWithCode(0), "");
}

TEST_F(ThreadsOfAProcess, OfGlobalPoolsThatCannotBeMadeAreAnError) {
  EXPECT_EXIT(
      {
        GlobalThreadPools pools;
        pools.intra_op_num_threads = 3;
        pools.threads.emplace();
        pools.threads->numa_node = 4000;
        OnnxRuntime::set_global_thread_pools(pools);
        const auto good = throws(ErrorKind::invalid_argument, {"NUMA node 4000"}, [] { runtime().env(); });
        pools.threads->numa_node.reset();
        OnnxRuntime::set_global_thread_pools(pools);  // there is no environment yet
        runtime().env();
        _exit(good && thread_counts().size() == 1 ? 0 : 1);
      },
      testing::ExitedWithCode(0), "");
}

// --- Arenas
// -----------------------------------------------------------------------------------------------------------

TEST_F(ThreadsOfAProcess, HasArenasThatSessionsShare) {
  EXPECT_EXIT(
      {
        SessionOptions options;
        options.config_entries["session.use_env_allocators"] = "1";
        OnnxRuntime::set_arenas({{"cpu", {{"max_mem", 64U << 20U}, {"arena_extend_strategy", 1}}}});
        bool good = OnnxRuntime::has_arena(Device::cpu()) && !OnnxRuntime::has_arena(Device::cuda(0));
        good = good && run_add(*make_session("add", options)) == sum_of_add();
        good = good && throws(ErrorKind::fail, {"before the first session"}, [] { OnnxRuntime::set_arenas({}); });
        _exit(good ? 0 : 1);
      },
      testing::ExitedWithCode(0), "");
}

TEST_F(ThreadsOfAProcess, SharesNoArenaUnlessThatIsAskedFor) {
  EXPECT_EXIT(
      {
        SessionOptions options;
        options.config_entries["session.use_env_allocators"] = "1";
        const auto result =
            throws(ErrorKind::invalid_argument, {"configure(arena=...)"}, [&] { make_session("add", options); });
        std::cerr << result.message();
        _exit(result && run_add(*make_session("add")) == sum_of_add() ? 0 : 1);
      },
      testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace ortmulti::tests
