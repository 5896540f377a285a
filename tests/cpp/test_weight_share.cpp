// Weights that processes have in common, over the driver in host memory. Other processes are this program again.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sched.h>
#include <spawn.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/base/file.hpp"
#include "core/weights/offers.hpp"
#include "core/weights/share.hpp"
#include "core/weights/store.hpp"
#include "loading.hpp"

extern char** environ;  // NOLINT(readability-redundant-declaration)

namespace {
std::atomic<int> flock_error{0};
}  // namespace

// In the place of the C library's: it may fail as on a network's file system.
extern "C" int flock(int fd, int operation) __THROW {
  if (const int error = flock_error.load(); error != 0) {
    errno = error;
    return -1;
  }
  return static_cast<int>(syscall(SYS_flock, fd, operation));
}

namespace ortmulti::tests {
namespace {

using std::chrono::seconds;
using std::chrono::steady_clock;
using Store = std::shared_ptr<CudaWeightStore>;

constexpr const char* file_variable = "ORTMULTI_TEST_FILE";
constexpr const char* killed_variable = "ORTMULTI_TEST_KILLED_AT";
constexpr const char* stops_variable = "ORTMULTI_TEST_STOPS";

void set(const char* name, const std::string& value) { setenv(name, value.c_str(), 1); }

// A socket that is asked to connect to a path, or to listen there.
bool at_path(int (*call)(int, const sockaddr*, socklen_t), int socket, const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::ranges::copy(path, std::begin(address.sun_path));
  return call(socket, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0;
}

// Weights in one file, of which each process knows the bytes.
WeightList weights_in(const std::string& path) {
  WeightList list;
  list.sources.push_back(file_source(path));
  for (std::uint64_t i = 0; i < 40; ++i) {
    list.weights.push_back({"weight" + std::to_string(i), 2, {1000}, 0, i * 4096, 1000 + i});
  }
  return list;
}

// The program again, which runs one test of HelperTest.
class Other : NonCopyable {
 public:
  explicit Other(const std::string& test) {
    int to[2];
    int from[2];
    EXPECT_EQ(pipe2(to, O_CLOEXEC) + pipe2(from, O_CLOEXEC), 0);
    posix_spawn_file_actions_t actions{};
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, to[0], STDIN_FILENO);
    posix_spawn_file_actions_adddup2(&actions, from[1], STDERR_FILENO);
    posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
    std::string filter = "--gtest_filter=HelperTest.DISABLED_" + test;
    std::string also = "--gtest_also_run_disabled_tests";
    std::string name = "other";
    char* arguments[] = {name.data(), filter.data(), also.data(), nullptr};
    EXPECT_EQ(posix_spawn(&process_, "/proc/self/exe", &actions, nullptr, arguments, environ), 0);
    posix_spawn_file_actions_destroy(&actions);
    close(to[0]);
    close(from[1]);
    to_ = to[1];
    from_ = from[0];
  }
  ~Other() {
    end();
    close(from_);
  }

  // What it says next; empty: it has ended.
  std::string says() const {
    std::string text;
    pollfd waiting{from_, POLLIN, 0};
    for (char letter = 0; poll(&waiting, 1, 20'000) == 1 && read(from_, &letter, 1) == 1 && letter != '\n';) {
      text += letter;
    }
    return text;
  }
  void kill_it() const { kill(process_, SIGKILL); }
  void stop_it() const {
    kill(process_, SIGSTOP);
    wait_until_stopped();
  }
  void wait_until_stopped() const { waitpid(process_, nullptr, WUNTRACED); }
  void continue_it() const { kill(process_, SIGCONT); }
  // Waits for it to end by itself, or by being killed.
  void end() {
    if (to_ >= 0) {
      close(to_);
      to_ = -1;
      kill(process_, SIGCONT);
      waitpid(process_, nullptr, 0);
    }
  }

 private:
  pid_t process_ = 0;
  int to_ = -1;
  int from_ = -1;
};

// What a process does.
class Sharing : public Loading {
 protected:
  Stores share_on(const std::vector<int>& devices, const std::shared_ptr<Timeline>& timeline = nullptr,
                  std::chrono::milliseconds patience = seconds(60)) {
    Request request;
    request.devices = devices;
    request.patience = patience;
    request.share = true;
    request.timeline = timeline;
    return load(std::make_shared<const WeightPlan>(plan_weights(weights_in(file))), request);
  }
  bool is_right(const std::shared_ptr<const CudaWeightStore>& store) {
    const std::string bytes = file_bytes();
    const auto& weights = store->plan().list.weights;
    for (std::size_t i = 0; i < weights.size(); ++i) {
      if (fake.read(store->address(i), weights[i].length) != bytes.substr(weights[i].offset, weights[i].length)) {
        return false;
      }
    }
    return true;
  }
  std::string file_bytes() const {
    std::string bytes(200'000, '\0');
    InputFile(file).try_read(bytes.data(), bytes.size(), 0);
    return bytes;
  }
  int copies() {
    const std::lock_guard lock(fake.mutex);
    return fake.calls["cuMemcpyHtoDAsync"];
  }
  std::string file;
};

class ShareTest : public Sharing {
 protected:
  // The thread that answers stays for the process.
  static void SetUpTestSuite() {
    const TemporaryFolder folder;
    set("ORTMULTI_SHARE_DIR", folder / "share");
    const WeightOffer offer(std::string(32, 'a'), {"", "", 0, 0, Descriptor(open("/dev/null", O_RDONLY | O_CLOEXEC))});
  }

  void SetUp() override {
    set("ORTMULTI_SHARE_DIR", folder / "share");
    std::string content(200'000, '\0');
    for (std::size_t i = 0; i < content.size(); ++i) {
      content[i] = static_cast<char>(i * 7919 >> 3U);
    }
    file = folder.write("weights", content);
    set(file_variable, file);
    unsetenv(killed_variable);
    unsetenv(stops_variable);
  }

  static bool says(const Timeline& timeline, const std::string& text) {
    const auto spans = timeline.spans();
    return std::ranges::any_of(spans, [&](const Span& span) { return span.name.find(text) != std::string::npos; });
  }
  std::vector<std::string> sockets() const {
    std::vector<std::string> paths;
    for (const auto& entry : std::filesystem::directory_iterator(folder / "share")) {
      paths.push_back(entry.path());
    }
    return paths;
  }

  TemporaryFolder folder;
};

TEST_F(ShareTest, ASecondLoadTakesTheMemoryOfTheFirst) {
  const Stores first = share_on({1});
  EXPECT_TRUE(is_right(first[0]));
  const std::size_t allocated = fake.allocated(1);
  const int copied = copies();
  const auto timeline = std::make_shared<Timeline>();
  const Stores second = share_on({1}, timeline);
  EXPECT_TRUE(is_right(second[0]));
  EXPECT_EQ(fake.allocated(1), allocated);
  EXPECT_EQ(copies(), copied);
  EXPECT_TRUE(says(*timeline, "map weights of process " + std::to_string(getpid())));
  EXPECT_FALSE(says(*timeline, "not shared"));
}

TEST_F(ShareTest, OtherDevicesOtherFilesAndThoseWhoDoNotAskHaveTheirOwn) {
  const Stores first = share_on({0});
  int copied = copies();
  const Stores elsewhere = share_on({1});
  EXPECT_GT(copies(), copied);
  copied = copies();
  Request alone;
  alone.devices = {0};
  const Stores unshared = load(std::make_shared<const WeightPlan>(plan_weights(weights_in(file))), alone);
  EXPECT_GT(copies(), copied);
  copied = copies();
  std::filesystem::last_write_time(file, std::filesystem::last_write_time(file) + seconds(1));
  const Stores changed = share_on({0});
  EXPECT_GT(copies(), copied);
}

TEST_F(ShareTest, AFileWrittenAnewWithItsOldTimeIsRead) {
  const Stores first = share_on({1});
  write_anew(file, std::string(200'000, 'z'));
  EXPECT_TRUE(is_right(share_on({1})[0]));
}

// A file of a read-only image, whose times all files have: only the bytes differ.
class ImageSource : public Source {
 public:
  explicit ImageSource(const std::string& path) : Source(path, "an identity", 200'000), file_(path) {}
  std::shared_ptr<const InputFile> open() const override { return {std::shared_ptr<void>(), &file_}; }

 private:
  void read_range(void* target, std::uint64_t size, std::uint64_t offset) const override {
    file_.try_read(target, size, offset);
  }
  InputFile file_;
};

TEST_F(ShareTest, AnyWeightWithOtherBytesHasAnotherKey) {
  const auto key_of = [](const std::string& path) {
    WeightList list = weights_in(path);
    list.sources = {std::make_shared<const ImageSource>(path)};
    return share_key(plan_weights(list), {}, 12000);
  };
  const std::string key = key_of(file);
  EXPECT_EQ(key_of(file), key);
  const std::string content = file_bytes();
  for (const Weight& weight : weights_in(file).weights) {
    std::string other = content;
    other.replace(weight.offset, weight.length, weight.length, 'z');
    EXPECT_NE(key_of(folder.write("other", other)), key) << weight.name;
  }
}

TEST_F(ShareTest, TheOrderInWhichAListHasTheWeightsDoesNotMatter) {
  const auto key_of = [](WeightList list) { return share_key(plan_weights(std::move(list)), {}, 12000); };
  WeightList list = weights_in(file);
  const std::string key = key_of(list);
  ASSERT_GT(list.weights.size(), 2U);
  std::ranges::reverse(list.weights);
  EXPECT_EQ(key_of(list), key) << "a model's and that of its entry in the cache";
}

TEST_F(ShareTest, SeveralDevicesTakeWhatIsThereAndCopyTheRest) {
  const Stores first = share_on({1});
  const int copied = copies();
  const Stores all = share_on({0, 1, 2});
  EXPECT_EQ(copies(), copied) << "from the device that has them";
  for (const auto& store : all) {
    EXPECT_TRUE(is_right(store));
  }
  const Stores again = share_on({2, 0});
  EXPECT_EQ(copies(), copied);
}

TEST_F(ShareTest, SleepGivesTheMemoryBackAndWakeTakesThatOfAnother) {
  const Store one = std::const_pointer_cast<CudaWeightStore>(share_on({0})[0]);
  {
    const Store other = std::const_pointer_cast<CudaWeightStore>(share_on({0})[0]);
    const int copied = copies();
    EXPECT_TRUE(one->sleep(HostCopy::none, steady_clock::now()));
    one->wake(nullptr);
    EXPECT_EQ(copies(), copied);
    EXPECT_TRUE(is_right(one));
    EXPECT_TRUE(other->sleep(HostCopy::none, steady_clock::now()));
    EXPECT_TRUE(one->sleep(HostCopy::none, steady_clock::now()));
    EXPECT_EQ(fake.allocated(0), 0);
    EXPECT_TRUE(all_offers().empty());
    other->wake(nullptr);
    EXPECT_GT(copies(), copied);
    EXPECT_TRUE(is_right(other));
  }
  one->wake(nullptr);
  EXPECT_TRUE(is_right(one));
}

TEST_F(ShareTest, TheFolderHasNothingAtTheEnd) {
  {
    const Stores stores = share_on({0, 1});
    const std::vector<Offered> offers = all_offers();
    ASSERT_EQ(offers.size(), 2);
    EXPECT_EQ(offers[0].model, file);
    EXPECT_EQ(offers[0].process, getpid());
    EXPECT_GE(offers[0].bytes, stores[0]->plan().slab_bytes);
    EXPECT_NE(offers[0].device, offers[1].device);
  }
  EXPECT_EQ(sockets(), std::vector<std::string>());
}

TEST_F(ShareTest, WhatCannotBeSharedIsLoadedAndSaysWhy) {
  const auto shared_by = [this](const char* why) {
    const auto timeline = std::make_shared<Timeline>();
    const Stores stores = share_on({0}, timeline);
    EXPECT_TRUE(is_right(stores[0]));
    EXPECT_TRUE(all_offers().empty());
    EXPECT_TRUE(says(*timeline, std::string("not shared with other processes: ") + why)) << why;
  };
  fake.shareable = false;
  shared_by("cuda:0 has no memory that processes share");
  fake.shareable = true;
  fake.failing["cuMemExportToShareableHandle"] = CUDA_ERROR_NOT_PERMITTED;
  shared_by("sharing memory of cuda:0 failed");
  fake.failing.clear();
  const std::string folder_of_others = folder / "open";
  std::filesystem::create_directory(folder_of_others);
  chmod(folder_of_others.c_str(), 0755);
  const auto refused = [&](const std::string& path, const std::string& why) {
    set("ORTMULTI_SHARE_DIR", path);
    const auto timeline = std::make_shared<Timeline>();
    EXPECT_TRUE(is_right(share_on({0}, timeline)[0]));
    EXPECT_TRUE(says(*timeline, why)) << why;
  };
  refused(folder_of_others, "is not a folder of this user's alone");
  std::filesystem::create_directory_symlink(folder / "share", folder / "link");
  refused(folder / "link", "is not a folder of this user's alone");
  refused(folder / std::string(120, 'x'), "is too long for a socket");
  refused(file + "/share", "cannot make the folder");
}

TEST_F(ShareTest, WithoutLocksNothingIsShared) {
  flock_error = ENOLCK;
  const auto timeline = std::make_shared<Timeline>();
  const Stores stores = share_on({0}, timeline);
  flock_error = 0;
  EXPECT_TRUE(is_right(stores[0]));
  EXPECT_TRUE(says(*timeline, "not shared with other processes: cannot lock '"));
}

TEST_F(ShareTest, AHandleThatTheDriverRefusesIsNotUsed) {
  const Stores first = share_on({0});
  fake.failing["cuMemImportFromShareableHandle"] = CUDA_ERROR_INVALID_VALUE;
  const auto timeline = std::make_shared<Timeline>();
  const Stores second = share_on({0}, timeline);
  EXPECT_TRUE(is_right(second[0]));
  EXPECT_TRUE(says(*timeline, "not shared with other processes: taking another process's memory of cuda:0 failed"));
  fake.failing.clear();
}

TEST_F(ShareTest, WhoConnectsAndSaysNothingHoldsNobodyUp) {
  const Stores first = share_on({0});
  std::vector<Descriptor> silent;
  for (int i = 0; i < 20; ++i) {
    silent.emplace_back(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    ASSERT_TRUE(at_path(connect, silent.back().get(), sockets().front()));
  }
  const int copied = copies();
  const Stores second = share_on({0});
  EXPECT_EQ(copies(), copied);
}

TEST_F(ShareTest, WhoConnectsAgainAndAgainHoldsNoOtherOfferUp) {
  const auto offer = [](char key) {
    return std::make_unique<WeightOffer>(std::string(32, key),
                                         Offered{"", "", 0, 0, Descriptor(open("/dev/null", O_RDONLY | O_CLOEXEC))});
  };
  const auto asked = offer('a');
  const std::string path = sockets().front();
  std::atomic<bool> ended{false};
  std::atomic<int> connecting{0};
  std::vector<std::thread> others;
  others.reserve(4);
  for (int i = 0; i < 4; ++i) {
    others.emplace_back([&] {
      const auto until = steady_clock::now() + seconds(5);
      for (bool first = true; !ended && steady_clock::now() < until; first = false) {
        const Descriptor one(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
        EXPECT_TRUE(at_path(connect, one.get(), path));
        connecting += first ? 1 : 0;
      }
      --connecting;
    });
  }
  while (connecting < 4) {
    std::this_thread::yield();
  }
  offer('b').reset();
  EXPECT_EQ(connecting, 4) << "it has waited for them";
  ended = true;
  for (std::thread& one : others) {
    one.join();
  }
}

TEST_F(ShareTest, AnotherUserGetsNothing) {
  if (geteuid() != 0) {
    GTEST_SKIP() << "only root can be another user";
  }
  const Stores first = share_on({0});
  const std::string path = sockets().front();
  chmod(path.c_str(), 0777);
  chmod((folder / "share").c_str(), 0711);
  chmod(folder.path().c_str(), 0711);
  const auto receives = [&path](bool as_another) {
    return in_forked_child([&] {
      const int connected = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
      char first_byte = 0;
      return connected >= 0 && (!as_another || setuid(65534) == 0) && at_path(connect, connected, path) &&
             (read(connected, &first_byte, 1) == 1) != as_another;
    });
  };
  EXPECT_TRUE(receives(false));
  EXPECT_TRUE(receives(true));
}

TEST_F(ShareTest, FilesThatAreNoSocketsAndSocketsOfNobodyAreLeftOut) {
  const Stores first = share_on({0});
  const std::string path = sockets().front();
  const std::string beside = path.substr(0, path.size() - 20);
  folder.write("share/" + std::filesystem::path(beside).filename().string() + "x.sock", "");
  std::filesystem::create_symlink(path, beside + "y.sock");
  const Descriptor dead(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  const std::string of_nobody = beside + "z.sock";
  ASSERT_TRUE(at_path(bind, dead.get(), of_nobody));
  EXPECT_EQ(all_offers().size(), 1);
  EXPECT_FALSE(std::filesystem::exists(of_nobody));
}

TEST_F(ShareTest, WithoutDescriptorsLoadsGoOn) {
  const Stores first = share_on({0});
  rlimit before{};
  getrlimit(RLIMIT_NOFILE, &before);
  std::vector<Descriptor> used;
  rlimit few = before;
  few.rlim_cur = open_files() + 8;
  setrlimit(RLIMIT_NOFILE, &few);
  for (int more = dup(0); more >= 0; more = dup(0)) {
    used.emplace_back(more);
  }
  used.pop_back();
  EXPECT_TRUE(all_offers().empty()) << "none is left for who answers";
  used.clear();
  setrlimit(RLIMIT_NOFILE, &before);
  EXPECT_EQ(all_offers().size(), 1);
}

// What the other processes do.
class HelperTest : public Sharing {
 protected:
  void SetUp() override { file = std::getenv(file_variable); }
  void TearDown() override {}
  static void say(const std::string& text) {
    static_cast<void>(!write(STDERR_FILENO, (text + "\n").data(), text.size() + 1));
  }
  static void wait_for_end() {
    for (char letter = 0; read(STDIN_FILENO, &letter, 1) == 1;) {
    }
  }
};

TEST_F(HelperTest, DISABLED_Loads) {
  if (const char* killed = std::getenv(killed_variable)) {
    const int at = std::stoi(killed);
    static std::atomic<int> calls{0};
    fake.on_call = [at](const char* /*function*/) {
      if (++calls == at) {
        kill(getpid(), SIGKILL);
      }
    };
  }
  if (std::getenv(stops_variable) != nullptr) {
    static std::atomic<bool> was_stopped{false};
    fake.on_call = [](const char* function) {
      if (std::string(function) == "cuMemcpyHtoDAsync" && !was_stopped.exchange(true)) {
        kill(getpid(), SIGSTOP);
      }
    };
  }
  const Stores stores = share_on({0});
  say(std::string(is_right(stores[0]) ? "right" : "wrong") + (copies() == 0 ? " mapped" : " read"));
  wait_for_end();
}

TEST_F(ShareTest, AnotherProcessMapsThemAndKeepsThemWhenTheFirstIsKilled) {
  Other first("Loads");
  EXPECT_EQ(first.says(), "right read");
  Other second("Loads");
  EXPECT_EQ(second.says(), "right mapped");
  first.kill_it();
  first.end();
  Other third("Loads");
  EXPECT_EQ(third.says(), "right mapped");
  EXPECT_TRUE(is_right(share_on({0})[0]));
  EXPECT_EQ(copies(), 0);
  second.kill_it();
  second.end();
  third.end();
  EXPECT_TRUE(all_offers().empty());
  EXPECT_EQ(sockets(), std::vector<std::string>());
}

// Namespaces of their own, as containers have: there other processes have other numbers, or none.
TEST_F(ShareTest, ProcessesInContainersShareToo) {
  const Other first("Loads");
  EXPECT_EQ(first.says(), "right read");
  enum { shared = 0, failed = 1, not_allowed = 2 };
  const pid_t child = fork();
  if (child == 0) {
    constexpr int spaces = CLONE_NEWPID | CLONE_NEWIPC | CLONE_NEWNET | CLONE_NEWNS;
    if (unshare(spaces) != 0 && unshare(spaces | CLONE_NEWUSER) != 0) {
      _exit(not_allowed);
    }
    Other second("Loads");
    const bool mapped = second.says() == "right mapped";
    second.end();
    _exit(mapped ? shared : failed);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  if (WEXITSTATUS(status) == not_allowed) {
    GTEST_SKIP() << "this process may not make namespaces";
  }
  EXPECT_EQ(status, 0);
}

TEST_F(ShareTest, AProcessThatIsStoppedIsNotWaitedForLong) {
  const Other first("Loads");
  EXPECT_EQ(first.says(), "right read");
  first.stop_it();
  const auto begin = steady_clock::now();
  EXPECT_TRUE(is_right(share_on({0})[0]));
  EXPECT_LT(steady_clock::now() - begin, seconds(20));
}

TEST_F(ShareTest, AProcessThatIsStoppedWhileItLoadsLosesItsTurn) {
  set(stops_variable, "1");
  Other stopped("Loads");
  unsetenv(stops_variable);
  stopped.wait_until_stopped();
  take_log();
  {
    const Stores stores = share_on({0}, nullptr, std::chrono::milliseconds(100));
    EXPECT_TRUE(is_right(stores[0]));
    std::string log;
    for (const LogRecord& record : take_log()) {
      log += record.message + "\n";
    }
    EXPECT_NE(log.find("another process loads the weights of '" + file + "', and has made no progress for 0 s: "),
              std::string::npos)
        << log;
    EXPECT_NE(log.find("continue it, or end it"), std::string::npos) << log;
    EXPECT_NE(log.find("it is not waited for any longer"), std::string::npos) << log;
    const int copied = copies();
    EXPECT_TRUE(is_right(share_on({0})[0]));
    EXPECT_EQ(copies(), copied) << "others do not wait again";
    stopped.continue_it();
    EXPECT_EQ(stopped.says(), "right read");
  }
  stopped.end();
  EXPECT_EQ(sockets(), std::vector<std::string>());
}

TEST_F(ShareTest, ALoadThatGoesOnKeepsItsTurn) {
  std::vector<bool> renewed;
  const std::string lock = folder / "share/" + [this] {
    return share_key(plan_weights(weights_in(file)), startup->describe(0), startup->driver_version().value_or(0));
  }() + ".lock";
  std::mutex mutex;
  fake.on_copy = [&](const FakeCuda::Copy&) {
    const std::lock_guard guard(mutex);
    struct stat status{};
    renewed.push_back(stat(lock.c_str(), &status) == 0 && status.st_mtim.tv_sec != 0);
    const timespec long_ago[2] = {};
    utimensat(AT_FDCWD, lock.c_str(), long_ago, 0);
    return CUDA_SUCCESS;
  };
  const Stores stores = share_on({0});
  EXPECT_GT(renewed.size(), 5);
  EXPECT_GT(std::count(renewed.begin(), renewed.end(), true), 2) << "as each chunk is read";
}

TEST_F(ShareTest, TheOneThatWaitsSeesProgress) {
  const std::string key(32, 'b');
  ShareLock has(key);
  ASSERT_TRUE(has.try_lock());
  const timespec long_ago[2] = {};
  utimensat(AT_FDCWD, (folder / "share/" + key + ".lock").c_str(), long_ago, 0);
  ShareLock waits(key);
  EXPECT_FALSE(waits.try_lock());
  const auto begin = steady_clock::now();
  EXPECT_FALSE(waits.try_lock());
  EXPECT_GE(waits.silence(), steady_clock::now() - begin);
  const auto renewed = steady_clock::now();
  has.renew();
  EXPECT_FALSE(waits.try_lock());
  const auto silence = waits.silence();
  EXPECT_LE(silence, steady_clock::now() - renewed);
}

TEST_F(ShareTest, ALockThatWasTakenAwayIsTheNextOnes) {
  const std::string key(32, 'c');
  auto had = std::make_unique<ShareLock>(key);
  ASSERT_TRUE(had->try_lock());
  auto takes = std::make_unique<ShareLock>(key);
  auto also_waits = std::make_unique<ShareLock>(key);
  ASSERT_FALSE(takes->try_lock());
  ASSERT_FALSE(also_waits->try_lock());
  EXPECT_TRUE(takes->take_away());
  EXPECT_FALSE(also_waits->take_away()) << "it is gone";
  EXPECT_TRUE(takes->try_lock());
  EXPECT_FALSE(also_waits->take_away()) << "it is another's";
  had.reset();
  EXPECT_FALSE(also_waits->try_lock()) << "nor does the one that had it remove it";
  takes.reset();
  EXPECT_TRUE(also_waits->try_lock());
}

TEST_F(ShareTest, AStartRemovesWhatKilledProcessesHaveLeft) {
  const std::string share = share_folder() + "/";
  const std::string other_key(32, 'd');
  const timespec long_ago[2] = {};
  const auto make = [&](const std::string& name, bool old) {
    const Descriptor one(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    EXPECT_TRUE(at_path(bind, one.get(), share + name));
    if (old) {
      utimensat(AT_FDCWD, (share + name).c_str(), long_ago, AT_SYMLINK_NOFOLLOW);
    }
  };
  make(other_key + ".1.sock", false);
  make(other_key + ".2", true);
  make(other_key + ".3", false);
  const std::string old_lock = folder.write("share/" + other_key + ".lock", "");
  utimensat(AT_FDCWD, old_lock.c_str(), long_ago, 0);
  ShareLock held(std::string(32, 'e'));
  EXPECT_TRUE(held.try_lock());
  const std::string held_path = share + std::string(32, 'e') + ".lock";
  utimensat(AT_FDCWD, held_path.c_str(), long_ago, 0);
  Other starts("Loads");
  EXPECT_EQ(starts.says(), "right read");
  starts.end();
  std::vector<std::string> left = sockets();
  std::ranges::sort(left);
  EXPECT_EQ(left, (std::vector<std::string>{share + other_key + ".3", held_path}));
}

TEST_F(ShareTest, ManyAtOnceReadOnce) {
  std::vector<std::unique_ptr<Other>> all;
  all.reserve(64);
  for (int i = 0; i < 64; ++i) {
    all.push_back(std::make_unique<Other>("Loads"));
  }
  int readers = 0;
  for (const auto& one : all) {
    const std::string said = one->says();
    EXPECT_EQ(said.substr(0, 5), "right");
    readers += said == "right read" ? 1 : 0;
  }
  EXPECT_EQ(readers, 1);
}

// Killed before each call of the driver: whoever comes then has the weights, and nothing is left.
TEST_F(ShareTest, WhereverALoadIsKilledTheNextHasTheWeights) {
  for (int at = 1;; ++at) {
    set(killed_variable, std::to_string(at));
    Other killed("Loads");
    unsetenv(killed_variable);
    Other next("Loads");
    EXPECT_EQ(next.says().substr(0, 5), "right") << at;
    const bool ended = killed.says().empty();
    killed.end();
    next.end();
    EXPECT_TRUE(all_offers().empty());
    if (!ended) {
      EXPECT_GT(at, 20);
      break;
    }
  }
  for (const std::string& path : sockets()) {
    EXPECT_NE(path.find(".lock"), std::string::npos) << path;  // of one that was killed: the next one has it
  }
}

// The same of one that takes the weights of another.
TEST_F(ShareTest, WhereverATakerIsKilledTheGiverGoesOn) {
  const Other giver("Loads");
  EXPECT_EQ(giver.says(), "right read");
  for (int at = 1;; ++at) {
    set(killed_variable, std::to_string(at));
    Other killed("Loads");
    unsetenv(killed_variable);
    const std::string said = killed.says();
    EXPECT_TRUE(said.empty() || said == "right mapped") << said;
    killed.end();
    if (!said.empty()) {
      break;
    }
  }
  EXPECT_EQ(all_offers().size(), 1);
  EXPECT_TRUE(is_right(share_on({0})[0]));
  EXPECT_EQ(copies(), 0);
}

TEST_F(ShareTest, AForkedChildKeepsNothing) {
  const Stores stores = share_on({0});
  EXPECT_TRUE(in_forked_child([] {
    for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
      std::error_code gone;
      const std::string target = std::filesystem::read_symlink(entry.path(), gone).string();
      if (std::stoi(entry.path().filename()) > STDERR_FILENO && target.find("socket:") == 0) {
        return false;
      }
    }
    return true;
  }));
  EXPECT_EQ(all_offers().size(), 1);
}

}  // namespace
}  // namespace ortmulti::tests
