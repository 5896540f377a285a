#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "core/base/error.hpp"
#include "loading.hpp"

namespace ortmulti::tests {
namespace {

using Kind = FakeCuda::Copy::Kind;

// Loads of which a device that fails is left out.
class WeightLoadingLeftOut : public Loading {
 protected:
  WeightLoadingLeftOut() { files.add_even(24, 3000); }

  // How each device failed; empty for one that did not, which must have the right bytes.
  std::vector<std::string> load_on(const std::vector<int>& devices) {
    Request request;
    request.devices = devices;
    request.keep_going = true;
    std::vector<std::string> problems;
    for (const Result& result : load_each(files.plan(), request)) {
      problems.push_back(result.problem);
      EXPECT_TRUE(result.error || right(files, {result.store}));
    }
    return problems;
  }
  // The places of those that failed.
  static std::vector<std::size_t> failed(const std::vector<std::string>& problems) {
    std::vector<std::size_t> places;
    for (std::size_t i = 0; i < problems.size(); ++i) {
      if (!problems[i].empty()) {
        places.push_back(i);
      }
    }
    return places;
  }

  WeightFiles files;
};

TEST_F(WeightLoadingLeftOut, AnyDeviceWithoutMemory) {
  for (const bool peers : {true, false}) {
    fake.peers = peers;
    for (std::size_t place = 0; place < 4; ++place) {
      restart();
      for (int device = 0; device < (place % 2 == 0 ? 4 : 0); ++device) {
        startup->make_current(device);  // whose contexts are there are waited for
      }
      fake.memory_limit = {{static_cast<int>(place), 50'000}};
      const auto problems = load_on({0, 1, 2, 3});
      EXPECT_EQ(failed(problems), std::vector<std::size_t>{place});
      EXPECT_NE(problems[place].find("cuda:" + std::to_string(place)), std::string::npos) << problems[place];
      EXPECT_TRUE(nothing_left());
    }
  }
}

TEST_F(WeightLoadingLeftOut, AllButOne) {
  fake.memory_limit = {{0, 50'000}, {1, 50'000}, {3, 50'000}};
  EXPECT_EQ(failed(load_on({0, 1, 2, 3})), (std::vector<std::size_t>{0, 1, 3}));
}

TEST_F(WeightLoadingLeftOut, TheFirstWhoseCopyFailsWhileOthersFollowIt) {
  for (const bool peers : {true, false}) {
    fake.peers = peers;
    restart();
    fake.on_copy = [](const FakeCuda::Copy& copy) {
      return copy.kind == Kind::to_device && copy.device == 0 && copy.number > 3 ? CUDA_ERROR_ECC_UNCORRECTABLE
                                                                                 : CUDA_SUCCESS;
    };
    const auto problems = load_on({0, 1, 2, 3});
    EXPECT_EQ(failed(problems), std::vector<std::size_t>{0});
    EXPECT_NE(problems[0].find("CUDA_ERROR_ECC_UNCORRECTABLE"), std::string::npos) << problems[0];
    EXPECT_TRUE(nothing_left());
    fake.on_copy = {};
    fake.repair();
    EXPECT_TRUE(failed(load_on({0, 1, 2, 3})).empty());
  }
}

TEST_F(WeightLoadingLeftOut, AnyWhoseCopyFailsWhereEachReadsForItself) {
  fake.peers = false;
  for (int device = 0; device < 4; ++device) {
    restart();
    for (const int each : {0, 1, 2, 3}) {
      startup->make_current(each);  // so that one pass serves them all
    }
    fake.on_copy = [device](const FakeCuda::Copy& copy) {
      return copy.device == device && copy.number > 3 ? CUDA_ERROR_ECC_UNCORRECTABLE : CUDA_SUCCESS;
    };
    EXPECT_EQ(failed(load_on({0, 1, 2, 3})), std::vector<std::size_t>{static_cast<std::size_t>(device)});
    fake.on_copy = {};
    fake.repair();
    EXPECT_TRUE(nothing_left());
  }
}

TEST_F(WeightLoadingLeftOut, OneWhoseCopyFromAPeerFails) {
  fake.on_copy = [](const FakeCuda::Copy& copy) {
    return copy.kind == Kind::peer && copy.device == 2 ? CUDA_ERROR_ECC_UNCORRECTABLE : CUDA_SUCCESS;
  };
  EXPECT_EQ(failed(load_on({0, 1, 2, 3})), std::vector<std::size_t>{2});
  fake.on_copy = {};
  fake.repair();
}

TEST_F(WeightLoadingLeftOut, AFileThatIsMissingFailsAll) {
  std::filesystem::remove(files.path(0));
  for (const std::string& problem : load_on({0, 1, 2})) {
    EXPECT_NE(problem.find("No such file"), std::string::npos) << problem;
  }
}

TEST_F(WeightLoadingLeftOut, EachDriverCallThatFailsEndsWithTheOthersRight) {
  for (const bool peers : {true, false}) {
    fake.peers = peers;
    restart();
    fake.calls.clear();
    ASSERT_TRUE(failed(load_on({0, 1, 2})).empty());
    const std::map<std::string, int> calls = fake.calls;
    for (const auto& [function, count] : calls) {
      if (function == "cuCtxSetCurrent" || function == "cuMemUnmap") {
        continue;  // memory of a context that is gone cannot be given back, of which the fake driver knows nothing
      }
      for (int call = 1; call <= count; call += 1 + count / 20) {
        SCOPED_TRACE(function + ", call " + std::to_string(call) + (peers ? "" : ", without peers"));
        restart();
        fake.calls.clear();
        fake.failing_call = {{function, {call, CUDA_ERROR_ECC_UNCORRECTABLE}}};
        load_on({0, 1, 2});
        fake.failing_call.clear();
        fake.repair();
        EXPECT_TRUE(nothing_left());
      }
    }
  }
}

}  // namespace
}  // namespace ortmulti::tests
