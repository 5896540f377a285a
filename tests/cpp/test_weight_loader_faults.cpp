#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <functional>
#include <mutex>
#include <set>
#include <string>
#include <utility>

#include "core/base/error.hpp"
#include "loading.hpp"

namespace ortmulti::tests {
namespace {

using Kind = FakeCuda::Copy::Kind;

class WeightLoadingFaults : public Loading {
 protected:
  WeightLoadingFaults() { files.add_even(24, 3000); }

  // The text of the Error of a load; empty where it succeeds, with the right bytes.
  std::string error_of(const Request& request = {}) {
    try {
      EXPECT_TRUE(right(files, load(files.plan(), request)));
    } catch (const Error& error) {
      kind = error.kind();
      return error.what();
    }
    return "";
  }
  testing::AssertionResult fails(ErrorKind expected, std::initializer_list<const char*> words,
                                 const Request& request = {}) {
    const auto result = throws(expected, words, [&] { load(files.plan(), request); });
    return result ? nothing_left() : result;
  }

  WeightFiles files;
  ErrorKind kind = ErrorKind::fail;
};

TEST_F(WeightLoadingFaults, OfEachDriverCallLeaveNothing) {
  // Functions whose failure is only about speed, or about what is over.
  const std::set<std::string> harmless = {"cuDeviceGetName",
                                          "cuDeviceGetUuid",
                                          "cuDeviceGetPCIBusId",
                                          "cuDeviceTotalMem",
                                          "cuCtxGetCurrent",
                                          "cuCtxEnablePeerAccess",
                                          "cuMemFree",
                                          "cuStreamDestroy",
                                          "cuEventDestroy",
                                          "major",
                                          "minor",
                                          "cuMemHostUnregister",
                                          "cuCtxSynchronize",
                                          "cuMemUnmap",
                                          "cuMemRelease",
                                          "cuMemAddressFree",
                                          "cuDeviceCanAccessPeer",
                                          "cuMemGetAllocationGranularity",
                                          "cuMemAddressReserve",
                                          "stable addresses",
                                          "cuMemSetAccess",
                                          "cuCtxSetCurrent",
                                          "cuStreamSynchronize",
                                          "cuDeviceGet",
                                          "cuDeviceGetCount"};
  const std::set<std::string> without_device = {"cuInit", "cuDeviceGetCount"};
  for (const bool peers : {true, false}) {
    fake.peers = peers;
    restart();
    fake.calls.clear();
    ASSERT_EQ(error_of(), "");
    ASSERT_TRUE(nothing_left());
    const std::map<std::string, int> calls = fake.calls;
    for (const auto& [function, count] : calls) {
      for (int call = 1; call <= count; ++call) {
        SCOPED_TRACE(function + ", call " + std::to_string(call) + (peers ? "" : ", without peers"));
        restart();
        fake.calls.clear();
        fake.failing_call = {{function, {call, CUDA_ERROR_ECC_UNCORRECTABLE}}};
        Request request;
        if (function == "cuCtxSetCurrent" || function == "cuMemUnmap") {
          // A context that is gone when memory is given back has taken that with it; the fake driver's has not. What
          // cannot be unmapped stays.
          request.after = [this](WeightLoader&) { fake.failing_call.clear(); };
        }
        const std::string error = error_of(request);
        const bool failed = fake.calls[function] >= call;
        EXPECT_TRUE(!error.empty() || !failed || harmless.count(function) != 0);
        if (!error.empty()) {
          EXPECT_EQ(kind, ErrorKind::device);
          EXPECT_NE(error.find("CUDA_ERROR_ECC_UNCORRECTABLE"), std::string::npos) << error;
          EXPECT_TRUE(error.find("cuda:") != std::string::npos || without_device.count(function) != 0) << error;
        }
        EXPECT_TRUE(nothing_left());
        fake.failing_call.clear();
      }
    }
    EXPECT_EQ(error_of(), "");  // and then it goes on
  }
}

TEST_F(WeightLoadingFaults, MayBeStoppedAtEachDriverCall) {
  for (const bool peers : {true, false}) {
    fake.peers = peers;
    bool completed = false;
    int stopped = 0;
    for (int when = 1; !completed; ++when) {
      SCOPED_TRACE(when);
      restart();
      WeightLoader* running = nullptr;
      std::atomic<int> calls{0};
      // Under the loader's lock it asks for peer access only; whoever stops it is not in there.
      fake.on_call = [&](const std::string& function) {
        if (running != nullptr && function != "cuDeviceCanAccessPeer" && function != "cuDeviceGet" && ++calls == when) {
          running->stop();
        }
      };
      Request request;
      request.before = [&](WeightLoader& loader) { running = &loader; };
      request.after = [&](WeightLoader&) { running = nullptr; };
      const std::string error = error_of(request);
      if (!error.empty()) {
        ++stopped;
        EXPECT_EQ(kind, ErrorKind::closed) << error;
      }
      completed = calls < when;
      EXPECT_TRUE(error.empty() || !completed);
      EXPECT_TRUE(nothing_left());
    }
    EXPECT_GT(stopped, 20);
  }
}

TEST_F(WeightLoadingFaults, MayBeStoppedBeforeItBegins) {
  Request request;
  request.before = [](WeightLoader& loader) {
    loader.stop();
    loader.stop();
  };
  EXPECT_TRUE(fails(ErrorKind::closed, {"stopped"}, request));
  const WeightLoader never_used(*startup, {files.plan(), nullptr, {}, true}, {0, 1}, nullptr);
}

TEST_F(WeightLoadingFaults, OutOfMemoryOnTheLastDevice) {
  Request request;
  request.devices = {0, 1, 2, 3};
  fake.memory_limit[3] = 50'000;
  EXPECT_TRUE(fails(ErrorKind::out_of_memory, {"cuda:3", "MB"}, request));
  fake.memory_limit.clear();
  fake.failing_call["cuMemCreate"] = {4, CUDA_ERROR_OUT_OF_MEMORY};
  fake.calls.clear();
  EXPECT_EQ(error_of(request), "") << "what it lacks once may have come back";
  fake.failing_call.clear();
  EXPECT_EQ(error_of(request), "");
}

TEST_F(WeightLoadingFaults, WeightsLargerThanTheDeviceAreRefusedBeforeItsContextAndAnyReading) {
  files.add(0, 0, std::uint64_t{3} << 30U);
  Request request;
  request.devices = {0};
  EXPECT_TRUE(fails(ErrorKind::out_of_memory, {"cuda:0", "3221 MB", "1073 MB"}, request));
  EXPECT_TRUE(fake.contexts.empty());
}

TEST_F(WeightLoadingFaults, ACopyThatFailsOnTheDevice) {
  struct Case {
    Kind kind;
    int device;
    const char* words;
  };
  for (const Case& one :
       {Case{Kind::to_device, 0, "cuda:0"}, Case{Kind::peer, 1, "cuda:1"}, Case{Kind::peer, 2, "cuda:2"}}) {
    const std::string left = [&] {
      fake.on_copy = [&](const FakeCuda::Copy& copy) {
        return copy.kind == one.kind && copy.device == one.device ? CUDA_ERROR_ECC_UNCORRECTABLE : CUDA_SUCCESS;
      };
      return error_of();
    }();
    EXPECT_EQ(kind, ErrorKind::device);
    EXPECT_NE(left.find(one.words), std::string::npos) << left;
    EXPECT_NE(left.find("CUDA_ERROR_ECC_UNCORRECTABLE"), std::string::npos) << left;
    EXPECT_TRUE(nothing_left());
    fake.repair();
    fake.on_copy = {};
    EXPECT_EQ(error_of(), "");
  }
}

TEST_F(WeightLoadingFaults, PeerAccessThatIsRefusedAfterAll) {
  fake.refused_peers = {{1, 0}};
  const std::string error = error_of();
  EXPECT_TRUE(error.empty() || error.find("cuda:1") != std::string::npos) << error;
}

TEST_F(WeightLoadingFaults, PeerAccessOfOthersIsLeftAsItWas) {
  startup->make_current(0);
  CUcontext first = nullptr;
  driver.ctx_get_current(&first);
  startup->make_current(1);
  EXPECT_EQ(driver.ctx_enable_peer_access(first, 0), CUDA_SUCCESS);
  EXPECT_EQ(error_of(), "");
  startup->make_current(1);
  EXPECT_EQ(driver.ctx_enable_peer_access(first, 0), CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
}

// --- Files ---

TEST_F(WeightLoadingFaults, AFileThatIsMissing) {
  std::filesystem::remove(files.path(0));
  EXPECT_TRUE(fails(ErrorKind::weights, {"weights0", "No such file"}));
}

TEST_F(WeightLoadingFaults, AFileThatIsNotTheOneThatWasListed) {
  files.folder.write("weights0", std::string(72'000, 'x'));
  EXPECT_TRUE(fails(ErrorKind::weights, {"weights0", "changed or replaced"}));
  std::filesystem::resize_file(files.path(0), 100);
  EXPECT_TRUE(fails(ErrorKind::weights, {"weights0", "changed or replaced"}));
}

TEST_F(WeightLoadingFaults, AFileThatIsChangedWhileItIsLoaded) {
  const std::string other = files.folder.write("other", std::string(72'000, 'x'));
  const std::pair<const char*, std::function<void()>> changes[] = {
      {"changed or replaced", [&] { std::filesystem::rename(other, files.path(0)); }},
      {"weights0", [&] { std::filesystem::resize_file(files.path(0), 5000); }}};
  for (const auto& [words, change] : changes) {
    files.list.sources[0] = file_source(files.path(0));
    std::once_flag once;
    fake.on_copy = [&, &change = change](const FakeCuda::Copy&) {
      std::call_once(once, change);
      return CUDA_SUCCESS;
    };
    EXPECT_TRUE(fails(ErrorKind::weights, {"weights0", words}));
  }
}

class Broken : public Source {
 public:
  Broken() : Source("broken", "broken", 72'000) {}

 private:
  void read_range(void* /*target*/, std::uint64_t size, std::uint64_t offset) const override {
    if (offset + size > 40'000) {
      throw Error(ErrorKind::not_found, "the 'broken' source has no more");
    }
  }
};

TEST_F(WeightLoadingFaults, ASourceThatCannotBeRead) {
  files.list.sources[0] = std::make_shared<const Broken>();
  EXPECT_TRUE(fails(ErrorKind::not_found, {"the 'broken' source has no more"}));
}

TEST_F(WeightLoadingFaults, AFileThatIsShorterThanItsWeights) {
  files.list.weights.back().length += 1;
  EXPECT_TRUE(fails(ErrorKind::weights, {"weights0", "has 72000 bytes, and"}));
}

}  // namespace
}  // namespace ortmulti::tests
