#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <ranges>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/pool/joint_request.hpp"
#include "fake_runner.hpp"

namespace ortmulti::tests {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using Shape = std::vector<std::int64_t>;
using Indices = std::vector<std::size_t>;

std::vector<std::byte> bytes_of(float value) {
  const auto* const begin = reinterpret_cast<const std::byte*>(&value);
  return {begin, begin + sizeof(value)};
}

// x [rows, length] is filled up with -1; y has the length in these dimensions.
std::shared_ptr<Padding> padding_of(const std::vector<std::size_t>& output_axes = {1}) {
  auto padding = std::make_shared<Padding>();
  padding->dimension = "the dimension 'n'";
  padding->inputs = {{"x", {1}, bytes_of(-1)}};
  padding->outputs = {{"y", output_axes, {}}};
  return padding;
}

Batching batching_of(std::shared_ptr<const Padding> padding, std::size_t max_size = 8) {
  Batching batching;
  batching.max_size = max_size;
  batching.padding = std::move(padding);
  return batching;
}

JointSize text(std::size_t length) { return {1, length, length, length}; }

class PaddingTest : public PoolWithFakes {
 protected:
  std::shared_ptr<Request> request_of(const Shape& shape, float first = 0) {
    auto request = answers.request();
    request->output_names = {"y"};
    request->inputs.add("x", tensor(shape, first));
    return request;
  }
};

TEST_F(PaddingTest, ShorterRequestsAreFilledUp) {
  const auto padding = padding_of();
  for (const bool at_front : {false, true}) {
    padding->at_front = at_front;
    const Batching batching = batching_of(padding);
    const auto joint = join({request_of({1, 1}, 5), request_of({2, 3}, 10)}, {text(1), {2, 3, 6, 6}}, batching);
    EXPECT_EQ(shape_of(joint->inputs.values()[0]), (Shape{3, 3}));
    EXPECT_EQ(numbers(joint->inputs.values()[0]), at_front ? (std::vector<float>{-1, -1, 5, 10, 11, 12, 13, 14, 15})
                                                           : (std::vector<float>{5, -1, -1, 10, 11, 12, 13, 14, 15}));
  }
}

TEST_F(PaddingTest, LengthsAndRowsAreRounded) {
  const auto padding = padding_of();
  padding->lengths = {2, 4};
  Batching batching = batching_of(padding, 2);
  batching.sizes = {2};
  const auto joint = join({request_of({1, 3}, 1)}, {text(3)}, batching);
  EXPECT_EQ(numbers(joint->inputs.values()[0]), (std::vector<float>{1, 2, 3, -1, 1, 2, 3, -1}));
  EXPECT_EQ(padding->rounded(5), 5U);
  padding->lengths = {};
  padding->multiple = 4;
  EXPECT_EQ(padding->rounded(5), 8U);
}

TEST_F(PaddingTest, OutputsAreCutInEachOfTheirDimensions) {
  const auto padding = padding_of({1, 2});
  for (const bool at_front : {false, true}) {
    padding->at_front = at_front;
    const Requests requests{request_of({1, 1}), request_of({1, 2})};
    Request joint;
    joint.output_names = {"y"};
    joint.outputs.push_back(tensor({2, 2, 2}, 0));
    split(joint, requests, {text(1), text(2)}, batching_of(padding));
    EXPECT_EQ(shape_of(requests[0]->outputs.at(0)), (Shape{1, 1, 1}));
    EXPECT_EQ(numbers(requests[0]->outputs[0]), (std::vector<float>{at_front ? 3.0F : 0.0F}));
    EXPECT_EQ(numbers(requests[1]->outputs.at(0)), (std::vector<float>{4, 5, 6, 7}));
  }
}

TEST_F(PaddingTest, AnOutputOfAnotherLengthCannotBeSplit) {
  Request joint;
  joint.output_names = {"y"};
  joint.outputs.push_back(tensor({2, 3}, 0));
  const Requests requests{request_of({1, 1}), request_of({1, 2})};
  EXPECT_THROW(split(joint, requests, {text(1), text(2)}, batching_of(padding_of())), Error);
}

TEST_F(PaddingTest, TheBatchMayLieBehindTheLength) {
  const auto padding = padding_of({0});
  padding->inputs[0].axes = {0};
  padding->axis = 1;
  Batching batching = batching_of(padding);
  batching.axis = 1;
  const Requests requests{request_of({1, 1}, 5), request_of({2, 1}, 7)};
  const auto joint = join(requests, {text(1), text(2)}, batching);
  EXPECT_EQ(shape_of(joint->inputs.values()[0]), (Shape{2, 2}));
  EXPECT_EQ(numbers(joint->inputs.values()[0]), (std::vector<float>{5, 7, -1, 8}));
  joint->outputs.push_back(tensor({2, 2}, 0));
  split(*joint, requests, {text(1), text(2)}, batching);
  EXPECT_EQ(numbers(requests[0]->outputs.at(0)), (std::vector<float>{0}));
  EXPECT_EQ(numbers(requests[1]->outputs.at(0)), (std::vector<float>{1, 3}));
}

// With a mask that the pool makes.
std::shared_ptr<Padding> with_mask() {
  auto padding = padding_of();
  padding->inputs.push_back({"mask", {1}, bytes_of(0)});
  padding->mask = "mask";
  padding->mask_type = ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT;
  padding->mask_one = bytes_of(1);
  return padding;
}

RunInputs inputs_of(const std::vector<std::int64_t>& shape, const std::vector<float>& data) {
  HostTensor given;
  given.type = ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT;
  given.rank = shape.size();
  std::ranges::copy(shape, given.shape.begin());
  given.data = data.data();
  RunInputs inputs;
  inputs.add("x", given);
  return inputs;
}

TEST_F(PaddingTest, AMaskIsMadeOfOnes) {
  const auto padding = with_mask();
  const std::vector<float> data{1, 2, 3};
  RunInputs inputs = inputs_of({1, 3}, data);
  padding->add_mask(inputs, padding->mask_shape(inputs));
  EXPECT_TRUE(padding->mask_shape(inputs).empty());  // it has one now
  ASSERT_EQ(inputs.size(), 2U);
  EXPECT_STREQ(inputs.names()[1], "mask");
  EXPECT_EQ(shape_of(inputs.values()[1]), (Shape{1, 3}));
  EXPECT_EQ(numbers(inputs.values()[1]), (std::vector<float>{1, 1, 1}));
  const RunInputs none;
  EXPECT_THROW(padding->mask_shape(none), Error);
}

TEST_F(PaddingTest, AMaskIsNoLargerThanAnInput) {
  const auto padding = with_mask();
  const std::vector<float> nothing;
  EXPECT_THROW(padding->mask_shape(inputs_of({1 << 20, 1 << 20, 0}, nothing)), Error);
  EXPECT_EQ(padding->mask_shape(inputs_of({1 << 20, 0, 5}, nothing)), (std::vector<std::int64_t>{1 << 20, 0}));
  EXPECT_EQ(padding->mask_shape(inputs_of({0, 1 << 20, 5}, nothing)), (std::vector<std::int64_t>{0, 1 << 20}));
}

// Runs that cost a fixed time and one for each element.
RunCost known(microseconds run, microseconds element) {
  RunCost cost;
  for (int i = 0; i < 2; ++i) {
    for (std::size_t rows = 1; rows <= 32; rows *= 2) {
      for (std::size_t length = 1; length <= 512; length *= 2) {
        cost.record(rows, length, run + element * static_cast<std::int64_t>(rows * length));
      }
    }
  }
  return cost;
}

TEST_F(PaddingTest, WhereRunsAreDearMuchIsPadded) {
  const std::vector<JointSize> waiting{text(8), text(500), text(9), text(64)};
  const auto padding = padding_of();
  EXPECT_EQ(batching_of(padding).choose(waiting, known(microseconds(10'000), microseconds(1))), (Indices{0, 1, 2, 3}));
  EXPECT_EQ(batching_of(padding).choose(waiting, known(microseconds(1), microseconds(10))), (Indices{0}));
  EXPECT_EQ(batching_of(padding).choose(waiting, known(microseconds(200), microseconds(10))), (Indices{0, 2}));
}

TEST_F(PaddingTest, LimitsHoldWhateverItCosts) {
  const std::vector<JointSize> waiting{text(8), text(10), text(64), text(9), text(40)};
  const RunCost cost = known(microseconds(10'000), microseconds(1));
  const auto padding = padding_of();
  EXPECT_LE(batching_of(padding, 2).choose(waiting, cost).size(), 2U);
  padding->max_tokens = 30;
  EXPECT_EQ(batching_of(padding).choose(waiting, cost), (Indices{0, 1, 3}));
  padding->max_tokens.reset();
  padding->max_waste = 0.2;
  for (const std::size_t chosen : batching_of(padding).choose(waiting, cost)) {
    EXPECT_LE(waiting[chosen].longest, 10U);
  }
  padding->max_tokens = 4;
  EXPECT_EQ(batching_of(padding).choose(waiting, cost), (Indices{0}));  // one is never refused
}

// Of a model that leaves padding out of its computation.
std::shared_ptr<Padding> packed(std::optional<std::size_t> max_tokens = {}) {
  auto padding = padding_of();
  padding->packed = true;
  padding->max_tokens = max_tokens;
  padding->max_waste = 0.5;
  return padding;
}

TEST_F(PaddingTest, WherePaddingCostsNothingRequestsJoinAsTheyCome) {
  const std::vector<JointSize> waiting{text(8), text(500), text(9), text(64), text(1)};
  const auto chosen = [&](std::optional<std::size_t> max_tokens, std::size_t max_size = 8) {
    const Batching batching = batching_of(packed(max_tokens), max_size);
    const Indices unmeasured = batching.choose(waiting, {});
    EXPECT_EQ(batching.choose(waiting, known(microseconds(1), microseconds(10))), unmeasured);
    return unmeasured;
  };
  EXPECT_EQ(chosen({}), (Indices{0, 1, 2, 3, 4}));
  EXPECT_EQ(chosen({}, 3), (Indices{0, 1, 2}));
  EXPECT_EQ(chosen(582), (Indices{0, 1, 2, 3, 4})) << "real tokens count";
  EXPECT_EQ(chosen(581), (Indices{0, 1, 2, 3}));
  EXPECT_EQ(chosen(80), (Indices{0, 2, 4})) << "what comes next, if one does not fit";
  EXPECT_EQ(chosen(4), (Indices{0})) << "one is never refused";
}

TEST_F(PaddingTest, ARunOfAModelThatLeavesPaddingOutIsFullByItsRealTokens) {
  const Batching batching = batching_of(packed(512));
  JointSize run = text(500);
  EXPECT_FALSE(batching.is_full(run)) << "short ones fit beside a long one";
  EXPECT_TRUE(batching.may_join(run, text(12), {})) << "nothing needs to be measured";
  EXPECT_FALSE(batching.may_join(run, text(13), {}));
  run.add(text(12));
  EXPECT_TRUE(batching.is_full(run));
  EXPECT_TRUE(batching.is_full({8, 1, 8, 8})) << "of max_size rows";
  const auto padding = padding_of();
  padding->max_tokens = 512;
  EXPECT_TRUE(batching_of(padding).is_full(text(500)));
  EXPECT_TRUE(batching_of(padding).is_full({2, 200, 201, 201})) << "a third row would have 200, too";
  EXPECT_FALSE(batching_of(padding).is_full(text(256)));
}

TEST_F(PaddingTest, NoOtherChoiceTakesLessTime) {
  const RunCost cost = known(microseconds(300), microseconds(7));
  const Batching batching = batching_of(padding_of());
  std::uint64_t random = 1;
  for (int round = 0; round < 200; ++round) {
    std::vector<JointSize> waiting;
    for (int i = 0; i < 6; ++i) {
      random = random * 6364136223846793005U + 1442695040888963407U;
      waiting.push_back(text(1 + (random >> 40U) % 100));
    }
    const auto time_of = [&](const Indices& run) {
      JointSize size;
      for (const std::size_t one : run) {
        size.add(waiting[one]);
      }
      return batching.fits(size, size.rows * size.longest) || run.size() == 1 ? cost.time(size.rows, size.longest)
                                                                              : std::numeric_limits<double>::infinity();
    };
    // What choose() takes, run after run, against all ways to cut their order.
    double chosen = 0;
    std::vector<JointSize> left = waiting;
    while (!left.empty()) {
      const Indices run = batching.choose(left, cost);
      JointSize size;
      for (const std::size_t one : std::views::reverse(run)) {
        size.add(left[one]);
        left.erase(left.begin() + static_cast<std::ptrdiff_t>(one));
      }
      chosen += cost.time(size.rows, size.longest);
    }
    std::ranges::sort(waiting, [](const auto& one, const auto& other) { return one.longest < other.longest; });
    double least = std::numeric_limits<double>::infinity();
    for (unsigned cuts = 0; cuts < 32; ++cuts) {  // behind which of the first five a run ends
      double all = 0;
      Indices run;
      for (std::size_t one = 0; one < 6; ++one) {
        run.push_back(one);
        if (one == 5 || (cuts >> one & 1U) != 0) {
          all += time_of(run);
          run.clear();
        }
      }
      least = std::min(least, all);
    }
    EXPECT_NEAR(chosen, least, 1e-6 * least) << round;
  }
}

TEST_F(PaddingTest, ARunIsFullWhereMoreWaitsBesideIt) {
  RunCost cost;
  for (int i = 0; i < 9; ++i) {
    for (std::size_t length = 16; length <= 512; length *= 2) {
      for (std::size_t rows = 1; rows <= 16; rows *= 2) {
        cost.record(rows, length, microseconds(5000));
      }
      cost.record(32, length, microseconds(2000));
    }
  }
  const Batching batching = batching_of(padding_of(), 32);
  for (const std::size_t first : {0, 10, 32, 50, 68, 90, 99}) {
    std::vector<JointSize> waiting{text(100 + first)};
    for (std::size_t length = 100; length < 200; ++length) {
      if (length != waiting[0].longest) {
        waiting.push_back(text(length));
      }
    }
    EXPECT_EQ(batching.choose(waiting, cost).size(), 32U) << first;
  }
}

TEST_F(PaddingTest, LargerRunsAreTriedWhileTheyGain) {
  RunCost cost;
  const auto record = [&cost](int runs, std::size_t rows, std::size_t length, int times_1000) {
    for (int i = 0; i < runs; ++i) {
      cost.record(rows, length, microseconds(times_1000) * 1000);
    }
  };
  EXPECT_FALSE(std::isinf(cost.time(1, 512))) << "one row always runs";
  EXPECT_TRUE(std::isinf(cost.time(2, 64)));
  record(1, 1, 64, 1);
  EXPECT_LT(cost.time(2, 64), 2 * cost.time(1, 64));
  EXPECT_LT(cost.time(1, 128), 2 * cost.time(1, 64));
  EXPECT_TRUE(std::isinf(cost.time(4, 64))) << "four times as many elements";
  record(5, 2, 64, 9);
  EXPECT_LT(cost.time(2, 64), 2 * cost.time(1, 64)) << "it may be the first runs of their shapes";
  record(1, 2, 64, 9);
  EXPECT_GT(cost.time(2, 64), 2 * cost.time(1, 64));
  EXPECT_TRUE(std::isinf(cost.time(4, 64))) << "half of it was no gain";
  record(1152, 1, 64, 1);
  EXPECT_LT(cost.time(2, 64), 2 * cost.time(1, 64)) << "once more";
  record(1, 2, 64, 9);
  EXPECT_GT(cost.time(2, 64), 2 * cost.time(1, 64));
  record(1152, 1, 64, 1);
  EXPECT_GT(cost.time(2, 64), 2 * cost.time(1, 64)) << "later each time";
  EXPECT_EQ(cost.why(), "an element of a run takes, from length 64: 15.6 us by 1, 70.3 us by 2 rows");
}

TEST_F(PaddingTest, ALongerRunIsNeverExpectedToTakeLess) {
  RunCost cost;
  for (int i = 0; i < 9; ++i) {
    cost.record(4, 20, microseconds(9000));  // by chance
    cost.record(4, 40, microseconds(4000));
    for (const std::size_t rows : {1, 2}) {
      cost.record(rows, 20, microseconds(9000));
      cost.record(rows, 40, microseconds(9000));
    }
  }
  EXPECT_LE(cost.time(4, 31), cost.time(4, 32));
  const std::vector<JointSize> waiting{text(31), text(31), text(31), text(31), text(32)};
  EXPECT_EQ(batching_of(padding_of(), 4).choose(waiting, cost), (Indices{0, 1, 2, 3}));
}

TEST_F(PaddingTest, ARunThatTookLongOnceHardlyCounts) {
  RunCost cost;
  const auto record = [&cost](int runs, int times_1000) {
    for (int i = 0; i < runs; ++i) {
      cost.record(1, 64, microseconds(times_1000) * 1000);
    }
  };
  record(9, 1);
  record(1, 100);
  EXPECT_DOUBLE_EQ(cost.time(1, 64), 1.125e6);
  record(99, 5);
  EXPECT_NEAR(cost.time(1, 64), 5e6, 1e5) << "it became slower";
  record(40, 1);
  EXPECT_NEAR(cost.time(1, 64), 1e6, 1e5) << "and faster";
}

TEST_F(PaddingTest, ARunThatTookLittleOnceHardlyCountsWhereManyWereMeasured) {
  RunCost often;
  RunCost seldom;
  for (int i = 0; i < 9; ++i) {
    often.record(1, 64, microseconds(9000));
  }
  seldom.record(1, 64, microseconds(9000));
  for (RunCost* const cost : {&often, &seldom}) {
    cost->record(1, 64, microseconds(1000));
  }
  EXPECT_DOUBLE_EQ(often.time(1, 64), 8e6);
  EXPECT_DOUBLE_EQ(seldom.time(1, 64), 5e6);
}

// A device with the times of its runs. The first run of a shape takes longer, and others do now and then.
class LearningTest : public PaddingTest {
 protected:
  static constexpr unsigned times = 4;
  using Ns = double;
  using Device = std::function<Ns(double rows, double length)>;

  // How much longer texts take while it is learnt which runs are best. They wait sorted by length, so many at a time.
  static double learns(const Device& device, Ns longer, std::size_t window) {
    RunCost known;
    for (int i = 0; i < 9; ++i) {
      for (std::size_t rows = 1; rows <= 64; rows *= 2) {
        for (std::size_t length = 8; length <= 512; length *= 2) {
          record(known, rows, length, device(static_cast<double>(rows), 1.4 * static_cast<double>(length)));
        }
      }
    }
    double all = 0;
    for (unsigned seed = 0; seed < times; ++seed) {
      RunCost unknown;
      RunCost best = known;
      all += run(device, longer, window, seed, unknown) / run(device, 0, window, seed, best);
    }
    return all / times;
  }

 private:
  static void record(RunCost& cost, std::size_t rows, std::size_t length, Ns time) {
    cost.record(rows, length, std::chrono::nanoseconds(std::llround(time)));
  }

  static Ns run(const Device& device, Ns longer, std::size_t window, unsigned seed, RunCost& cost) {
    const Batching batching = batching_of(padding_of(), 64);
    std::mt19937 random(seed);
    std::lognormal_distribution<> how_much_longer(0, 0.8);
    std::lognormal_distribution<> lengths(std::log(48), 0.8);
    std::uniform_real_distribution<> part;
    std::set<std::pair<std::size_t, std::size_t>> shapes;
    Ns taken = 0;
    for (std::size_t texts = 10'000; texts > 0;) {
      std::vector<JointSize> waiting;
      for (; texts > 0 && waiting.size() < window; --texts) {
        waiting.push_back(text(static_cast<std::size_t>(std::clamp(lengths(random), 8., 512.))));
      }
      std::ranges::sort(waiting, [](const auto& one, const auto& other) { return one.longest > other.longest; });
      while (!waiting.empty()) {
        const auto seen = static_cast<std::ptrdiff_t>(std::min<std::size_t>(512, waiting.size()));
        const Indices chosen = batching.choose({waiting.begin(), waiting.begin() + seen}, cost);
        JointSize size;
        for (const std::size_t one : std::views::reverse(chosen)) {
          size.add(waiting[one]);
          waiting.erase(waiting.begin() + static_cast<std::ptrdiff_t>(one));
        }
        const Ns usual = device(static_cast<double>(size.rows), static_cast<double>(size.longest));
        const bool is_longer = shapes.emplace(size.rows, size.longest).second || part(random) < 0.02;
        record(cost, size.rows, size.longest,
               usual * (0.8 + 0.4 * part(random)) + (is_longer ? longer * how_much_longer(random) : 0));
        taken += usual;
      }
    }
    return taken;
  }
};

TEST_F(LearningTest, AGpuPadsMuchOfWhatIsShort) {
  const auto gpu = [](double rows, double length) { return std::max(1.5e6, 1e6 + 700 * rows * length); };
  for (const std::size_t window : {2048, 10'000}) {
    EXPECT_LT(learns(gpu, 9e6, window), 1.25) << window;
  }
}

TEST_F(LearningTest, ACpuRunsWhatIsLongAlone) {
  const auto cpu = [](double rows, double length) {
    return 2e5 + (rows * length > 1024 ? 60e3 : 30e3) * rows * length;
  };
  for (const std::size_t window : {64, 512, 10'000}) {
    EXPECT_LT(learns(cpu, 2e5, window), 1.15) << window;
  }
}

TEST_F(PaddingTest, ASmallRunTakesNoMoreThanItsPartOfALargeOneAndTheShortest) {
  RunCost cost;
  for (int i = 0; i < 9; ++i) {
    cost.record(1, 8, microseconds(1000));
    cost.record(1, 512, microseconds(5000));
    cost.record(64, 512, microseconds(64'000));
    cost.record(32, 512, microseconds(60'000));  // beside large ones
  }
  EXPECT_NEAR(cost.time(64, 512), 64e6, 1e3);
  EXPECT_NEAR(cost.time(32, 512), 33e6, 1e3);
  EXPECT_NEAR(cost.time(40, 512), 41e6, 1e3);
  std::vector<JointSize> waiting(32, text(512));
  waiting.resize(64, text(600));
  EXPECT_EQ(batching_of(padding_of(), 64).choose(waiting, cost).size(), 32U);
}

TEST_F(PaddingTest, RunsThatShareADeviceTakeAPartOfItsTime) {
  SharedTime time;
  const auto at = [](int now) { return SharedTime::Time(microseconds(now)); };
  const auto alone = time.begin(at(0));
  const auto second = time.begin(at(10));
  EXPECT_EQ(time.end(alone, at(30)), microseconds(20));
  const auto third = time.begin(at(32));
  EXPECT_EQ(time.end(second, at(36)), microseconds(10 + 2 + 2));
  EXPECT_EQ(time.end(third, at(40)), microseconds(2 + 4));
  const auto later = time.begin(at(100));
  EXPECT_EQ(time.end(later, at(107)), microseconds(7));
}

// Answers with x; its time is said by a clock of the test's.
class LineTest : public PaddingTest {
 protected:
  void make(std::size_t max_size, const std::shared_ptr<const Padding>& padding = padding_of()) {
    Pool::Options options;
    options.batching.max_size = max_size;
    options.now = [this] { return now; };
    pool = Pool::make(options);
    runner = add(Device::cpu());
    runner->action = [this](Request& request) {
      const Shape shape = shape_of(request.inputs.values()[0]);
      now += microseconds(1000 + 10 * shape[0] * shape[1]);
      Ort::Value y = tensor(shape, 0);
      const auto x = numbers(request.inputs.values()[0]);
      its_run = std::ranges::find(x, marked) == x.end() ? its_run : runs.size();
      runs.push_back(shape);
      std::ranges::copy(x, y.GetTensorMutableData<float>());
      request.outputs.clear();
      request.outputs.push_back(std::move(y));
    };
    pool->set_padding(padding);
  }
  // How many runs began up to the one of a request of this length, among 40 of which half wait before it.
  std::size_t runs_until_its(std::int64_t length, std::int64_t shortest_other, std::int64_t others) {
    make(8);
    runner->hold();
    submit(request_of({1, 3}));
    runner->wait_for_runs(1);
    for (std::int64_t i = 0; i < 40; ++i) {
      if (i == 20) {
        submit(request_of({1, length}, marked));
      }
      submit(request_of({1, shortest_other + i % others}));
    }
    runner->release();
    answers.wait_for(42);
    return its_run;
  }

  static constexpr float marked = 1e6F;  // its first element
  std::size_t its_run = 0;               // after the first one; 0: none yet
  Request::Clock::time_point now;
  std::vector<Shape> runs;
  std::shared_ptr<FakeRunner> runner;
};

TEST_F(LineTest, ALongOneAmongShortOnesHasItsTurn) {
  const std::size_t run = runs_until_its(500, 4, 3);
  EXPECT_GE(run, 1U);
  EXPECT_LE(run, 21U);  // as many as waited before it
}

TEST_F(LineTest, AShortOneAmongLongOnesHasItsTurn) {
  const std::size_t run = runs_until_its(2, 400, 30);
  EXPECT_GE(run, 1U);
  EXPECT_LE(run, 21U);
}

TEST_F(LineTest, EachGetsItsOwn) {
  make(4);
  std::vector<std::shared_ptr<Request>> requests;
  for (int round = 0; round < 20; ++round) {
    for (const std::int64_t length : {7, 3, 9, 1, 12}) {
      requests.push_back(request_of({1 + round % 2, length}, static_cast<float>(100 * round)));
      submit(requests.back());
    }
  }
  answers.wait_for(requests.size());
  std::uint64_t elements = 0;
  for (const auto& request : requests) {
    ASSERT_EQ(request->outcome, Request::Outcome::done);
    EXPECT_EQ(shape_of(request->outputs.at(0)), shape_of(request->inputs.values()[0]));
    EXPECT_EQ(numbers(request->outputs[0]), numbers(request->inputs.values()[0]));
    elements += numbers(request->outputs[0]).size();
  }
  const DeviceStats stats = pool->stats().devices[0];
  EXPECT_EQ(stats.real_elements, elements);
  const auto run = std::accumulate(
      runs.begin(), runs.end(), std::uint64_t{0},
      [](std::uint64_t all, const Shape& shape) { return all + static_cast<std::uint64_t>(shape[0] * shape[1]); });
  EXPECT_EQ(stats.padded_elements, run - elements);
  EXPECT_LT(runs.size(), requests.size());
}

TEST_F(LineTest, RunsOfAModelThatLeavesPaddingOutAreInOrderOfArrival) {
  make(4, packed(60));
  runner->hold();
  submit(request_of({1, 3}));
  runner->wait_for_runs(1);
  for (const std::int64_t length : {50, 2, 40, 4, 4, 9, 100, 1, 7, 7, 7, 7}) {
    submit(request_of({1, length}));
  }
  runner->release();
  answers.wait_for(13);
  // 50 + 2 + 4 + 4 of 60; 40 + 9 + 1 + 7; 100 is more, and alone.
  EXPECT_EQ(runs, (std::vector<Shape>{{1, 3}, {4, 50}, {4, 40}, {1, 100}, {3, 7}}));
  const DeviceStats stats = pool->stats().devices[0];
  EXPECT_EQ(stats.real_elements, 241U);
  EXPECT_EQ(stats.padded_elements, 0U);
  EXPECT_NE(stats.why_padding.find("the model leaves padding out"), std::string::npos) << stats.why_padding;
  EXPECT_NE(stats.why_padding.find("from 8: "), std::string::npos) << stats.why_padding;
}

TEST_F(LineTest, InputsOfTwoLengthsAreRefused) {
  make(4);
  const auto padding = padding_of();
  padding->inputs.push_back({"z", {1}, bytes_of(0)});
  pool->set_padding(padding);
  const auto request = request_of({1, 3});
  request->inputs.add("z", tensor({1, 4}, 0));
  EXPECT_THROW(submit(request), Error);
  EXPECT_THROW(submit(request_of({1, 0})), Error);
  submit(request_of({1, 2}));
  answers.wait_for(1);
}

}  // namespace
}  // namespace ortmulti::tests
