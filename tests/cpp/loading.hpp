#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "core/cuda/startup.hpp"
#include "core/weights/loader.hpp"
#include "fake_cuda.hpp"
#include "test_support.hpp"

namespace ortmulti::tests {

/// Files of random bytes, and weights in them.
class WeightFiles {
 public:
  explicit WeightFiles(unsigned seed = 1) : random_(seed) {}

  std::size_t add_file(std::size_t size);
  void add(std::size_t file, std::uint64_t offset, std::uint64_t length);
  /// Weights of all sizes, at odd places, next to each other, in one another and twice.
  void add_random(std::size_t files, std::size_t weights_per_file);
  /// `count` weights that fill one more file.
  void add_even(std::size_t count, std::size_t length);

  WeightList list;
  std::shared_ptr<const WeightPlan> plan(const std::shared_ptr<const CudaWeightStore>& base = nullptr) const {
    return std::make_shared<const WeightPlan>(plan_weights(list, base));
  }
  /// What a weight's bytes are.
  std::string expected(std::size_t weight) const;
  const std::string& path(std::size_t file) const { return list.sources[file]->name(); }
  TemporaryFolder folder;

 private:
  std::mt19937 random_;
  std::vector<std::string> contents_;
};

std::size_t open_files();

/// A machine with GPUs in host memory, on which weights are loaded.
class Loading : public testing::Test {
 protected:
  Loading();
  ~Loading() override;
  /// Expects that a test has left nothing.
  void TearDown() override;

  struct Request {
    std::vector<int> devices{0, 1, 2};
    LoaderOptions options{2, 4096, 2};
    bool fill = true;
    bool keep_going = false;  ///< A device that fails is left out.
    bool share = false;       ///< With other processes.
    std::shared_ptr<Prefetch> prefetch;
    std::shared_ptr<Timeline> timeline;
    std::vector<std::size_t> order;                 ///< In which the devices' threads are started.
    std::function<void(WeightLoader&)> before;      ///< Called before there are threads.
    std::function<void(WeightLoader&)> after = {};  ///< Called when they have ended.
    std::chrono::milliseconds patience{60'000};     ///< See SharedWeights.
  };
  using Stores = std::vector<std::shared_ptr<const CudaWeightStore>>;

  /// What a device got, or the Error of allocated() or wait_filled().
  struct Result {
    std::shared_ptr<const CudaWeightStore> store;
    std::string problem = {};
    std::exception_ptr error = nullptr;
  };
  std::vector<Result> load_each(const std::shared_ptr<const WeightPlan>& plan, const Request& request);
  /// The stores of the request's devices, or their Error; one that is not the same for all devices fails the test.
  Stores load(const std::shared_ptr<const WeightPlan>& plan, const Request& request);
  testing::AssertionResult right(const WeightFiles& files, const Stores& stores);
  /// Whether memory, streams, events, threads and files are all given back, and the driver was used as it may be.
  testing::AssertionResult nothing_left();
  /// Another startup, as in a new process.
  void restart();

  FakeCuda& fake = FakeCuda::reset();
  CudaDriver driver = FakeCuda::table();
  std::unique_ptr<CudaStartup> startup;

 private:
  std::size_t threads_before_;
  std::size_t files_before_;
};

}  // namespace ortmulti::tests
