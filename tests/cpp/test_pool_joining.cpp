#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <numeric>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/policy/joining.hpp"
#include "core/policy/numbers.hpp"
#include "core/pool/audit.hpp"
#include "fake_runner.hpp"

namespace ortmulti::tests {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;
using Outcome = Request::Outcome;
using Shape = std::vector<std::int64_t>;

// A session whose requests wait until three rows are there.
class JoiningTest : public PoolWithFakes {
 protected:
  using PoolWithFakes::submit;

  void make(const Batching& batching = {3, hours(1), 0, {}}) {
    pool = Pool::make({{}, batching});
    runner = add(Device::cuda(0));  // on the CPU it would choose how many rows are joined, too
    runner->action = [this](Request& request) {
      const Shape shape = shape_of(request.inputs.values()[0]);
      sizes.push_back(shape[0]);
      request.outputs.push_back(answer(numbers(request.inputs.values()[0]), shape));
    };
  }

  std::shared_ptr<Request> request_of(float value, std::uint64_t caller = 0) {
    auto request = answers.request();
    request->output_names = {"y"};
    request->inputs.add("x", tensor({1, 1}, value));
    request->caller = caller;
    return request;
  }
  // Answers them all, or what became of them.
  std::vector<std::shared_ptr<Request>> ask(const std::vector<float>& values) {
    std::vector<std::shared_ptr<Request>> asked;
    asked.reserve(values.size());
    for (const float value : values) {
      asked.push_back(submit(request_of(value)));
    }
    total += values.size();
    answers.wait_for(total);
    return asked;
  }
  static std::vector<float> values_of(const std::vector<std::shared_ptr<Request>>& requests) {
    std::vector<float> values;
    for (const auto& request : requests) {
      const std::vector<float> own = numbers(request->outputs.at(0));
      values.insert(values.end(), own.begin(), own.end());
    }
    return values;
  }

  static Ort::Value with(const std::vector<float>& values, const Shape& shape) {
    Ort::Value y = tensor(shape);
    std::ranges::copy(values, y.GetTensorMutableData<float>());
    return y;
  }

  // The model: by default its rows are its input's.
  std::function<Ort::Value(std::vector<float>, const Shape&)> answer = with;
  std::vector<std::int64_t> sizes;  // of the runs
  std::shared_ptr<FakeRunner> runner;
  std::size_t total = 0;
};

TEST_F(JoiningTest, RequestsForOutputsWithoutRowsRunAloneAndTheReasonIsKnown) {
  make();
  pool->set_outputs({"m", {{"y", "output 'y' has 4 rows always"}}, {}, true, false});
  ask({1, 2, 3});
  EXPECT_EQ(sizes, (std::vector<std::int64_t>{1, 1, 1}));
  EXPECT_EQ(pool->stats().why_unbatched, "output 'y' has 4 rows always");
  EXPECT_EQ(pool->stats().apart, 3U);
  EXPECT_EQ(pool->stats().unbatched, 0U);
  pool->set_outputs({"m", {}, {}, true, false});
  pool->set_apart_inputs({{"x", "input 'x' is no row's"}});
  ask({1, 2, 3});
  EXPECT_EQ(pool->stats().why_unbatched, "input 'x' is no row's");
  EXPECT_EQ(pool->stats().apart, 6U);
  sizes.clear();
  pool->set_outputs({"m", {{"x", "others"}}, {}, true, false});
  pool->set_apart_inputs({{"y", "others"}});
  ask({1, 2, 3});
  EXPECT_EQ(sizes, (std::vector<std::int64_t>{3, 1}));  // with an audit
}

TEST_F(JoiningTest, AnAnswerThatDiffersFromTheOneAloneIsNotGivenAndEndsJoining) {
  make();
  pool->set_outputs({"m", {}, {}, true, false});
  answer = [](std::vector<float> values, const Shape& shape) {  // normalized over the batch
    float sum = 0;
    for (const float value : values) {
      sum += value;
    }
    for (float& value : values) {
      value /= sum;
    }
    return with(values, shape);
  };
  EXPECT_EQ(values_of(ask({1, 2, 5})), (std::vector<float>{1, 1, 1}));
  EXPECT_EQ(values_of(ask({3, 4, 5})), (std::vector<float>{1, 1, 1}));
  EXPECT_EQ(sizes, (std::vector<std::int64_t>{3, 1, 1, 1, 1, 1, 1, 1}));
  const PoolStats stats = pool->stats();
  EXPECT_EQ(stats.audits, 1U);
  EXPECT_EQ(stats.audit_differences, 1U);
  EXPECT_EQ(stats.unbatched, 1U);
  EXPECT_NE(stats.why_unbatched.find("output 'y' of a joint run differs from the answer to the request alone by "),
            std::string::npos);
}

TEST_F(JoiningTest, OutputsThatGrowInAnotherDimensionAreFound) {
  make();
  pool->set_outputs({"m", {}, {}, true, false});
  answer = [](const std::vector<float>& values, const Shape& shape) {
    const std::vector<float> all(values.size() * values.size(), values[0]);
    return with(all, {shape[0], shape[0]});
  };
  for (const auto& request : ask({1, 2, 5})) {
    EXPECT_EQ(shape_of(request->outputs.at(0)), (Shape{1, 1}));
  }
  EXPECT_EQ(pool->stats().why_unbatched.substr(0, 84),
            "output 'y' has the shape (1, 1) alone, and a part of the shape (1, 3) in a joint run");
}

TEST(Joining, FirstRunsOfShapesAreAuditedAtOnceForTwoSecondsInAll) {
  using std::chrono::seconds;
  Joining joining;
  joining.set_outputs({"m", {}, {}, true, false});
  const auto first = joining.audit("a", 2, 2, std::chrono::milliseconds(10));
  EXPECT_EQ(first.which.size(), 1U);
  joining.audited(first, seconds(3));  // a run of another size has cuDNN plan anew
  EXPECT_TRUE(joining.audit("b", 2, 2, seconds(500)).which.empty());
  EXPECT_EQ(joining.audit("b", 2, 2, seconds(200)).which.size(), 1U) << "as far as 0.5% of the time allow";
}

TEST(Joining, AuditsThatAreDueAtTheSameTimeProveOnce) {
  Joining joining;
  joining.set_outputs({"m", {}, {}, true, true});
  std::vector<Joining::Audit> due;
  for (std::size_t i = 0; i < *numbers::joining_proving_runs + 2; ++i) {  // of several sessions
    due.push_back(joining.audit("x", 3, 3, milliseconds(1)));
    EXPECT_TRUE(due.back().proves);
  }
  for (const Joining::Audit& each : due) {
    joining.audited(each, milliseconds(1));
  }
  EXPECT_FALSE(joining.audit("x", 3, 3, milliseconds(1)).proves);
}

TEST_F(JoiningTest, RequestsThatAreAlikeProveNothing) {
  make();
  pool->set_outputs({"m", {}, {}, true, true});
  answer = [](std::vector<float> values, const Shape& shape) {
    std::ranges::fill(values, values[0]);
    return with(values, shape);
  };
  for (int i = 0; i < 40; ++i) {
    ask({1, 1, 1});
  }
  EXPECT_EQ(pool->stats().audit_differences, 0U);
  EXPECT_EQ(values_of(ask({1, 1, 2})), (std::vector<float>{1, 1, 2}));
  EXPECT_EQ(pool->stats().audit_differences, 1U);
}

TEST_F(JoiningTest, OfRequestsThatAreAlikeTheLastIsCompared) {
  make();
  pool->set_outputs({"m", {}, {}, true, true});
  answer = [](std::vector<float> values, const Shape& shape) {
    values.back() += static_cast<float>(values.size() - 1);  // as one that counts the rows before
    return with(values, shape);
  };
  EXPECT_EQ(values_of(ask({1, 1, 1})), (std::vector<float>{1, 1, 1}));
  EXPECT_EQ(pool->stats().audit_differences, 1U);
}

TEST_F(JoiningTest, OfRandomOutputsOnlyTheShapesAreCompared) {
  make();
  pool->set_outputs({"m", {}, {"y"}, true, false});
  answer = [](std::vector<float> values, const Shape& shape) {
    values[0] += static_cast<float>(shape[0]);
    return with(values, shape);
  };
  EXPECT_EQ(values_of(ask({1, 2, 5})), (std::vector<float>{4, 2, 5}));
  EXPECT_EQ(pool->stats().audits, 1U);
  answer = [](const std::vector<float>& values, const Shape& shape) {
    return with(std::vector<float>(values.size() * values.size()), {shape[0], shape[0]});
  };
  pool->set_outputs({"m", {}, {"y"}, true, true});
  for (const auto& request : ask({1, 2, 5})) {
    EXPECT_EQ(shape_of(request->outputs.at(0)), (Shape{1, 1}));
  }
}

TEST_F(JoiningTest, AnAuditThatFailsSaysNothing) {
  make();
  pool->set_outputs({"m", {}, {}, true, false});
  const auto run = runner->action;
  runner->action = [&](Request& request) {
    if (shape_of(request.inputs.values()[0])[0] == 1) {
      throw Error(ErrorKind::out_of_memory, "none left");
    }
    run(request);
  };
  EXPECT_EQ(values_of(ask({1, 2, 5})), (std::vector<float>{1, 2, 5}));
  EXPECT_EQ(pool->stats().audits, 1U);
  EXPECT_EQ(pool->stats().audit_differences, 0U);
}

TEST_F(JoiningTest, AChoiceOfTwoEqualOnesMayGoByTheSizeOfTheRunButNotAlways) {
  make();
  pool->set_outputs({"m", {}, {}, true, false});
  std::size_t other = 0;
  runner->action = [&](Request& request) {
    const Shape shape = shape_of(request.inputs.values()[0]);
    sizes.push_back(shape[0]);
    static const Ort::AllocatorWithDefaultOptions cpu;
    Ort::Value y = Ort::Value::CreateTensor<std::int64_t>(cpu, shape.data(), shape.size());
    std::fill_n(y.GetTensorMutableData<std::int64_t>(), shape[0], shape[0] == 3 ? 7 : 8);
    other += shape[0] == 3 ? 1 : 0;
    request.outputs.push_back(std::move(y));
  };
  const auto integer = [](const Request& request) { return request.outputs.at(0).GetTensorData<std::int64_t>()[0]; };
  EXPECT_EQ(integer(*ask({1, 2, 5})[0]), 7);
  EXPECT_EQ(sizes, (std::vector<std::int64_t>{3, 1, 3}));
  EXPECT_EQ(pool->stats().audit_differences, 0U);
  Joining joining;
  std::size_t excused = 0;
  while (joining.is_rounding()) {
    joining.audited({{0}, "a"}, milliseconds(1));
    ++excused;
  }
  EXPECT_EQ(excused, 3U);
}

TEST_F(JoiningTest, OfManyOneThatFailsIsFoundInHalves) {
  make({8, hours(1), 0, {}});
  const auto run = runner->action;
  runner->action = [&](Request& request) {
    const std::vector<float> values = numbers(request.inputs.values()[0]);
    if (std::count(values.begin(), values.end(), 13) != 0) {
      sizes.push_back(-shape_of(request.inputs.values()[0])[0]);
      throw Error(ErrorKind::invalid_argument, "unlucky");
    }
    run(request);
  };
  const auto asked = ask({1, 2, 3, 4, 5, 13, 7, 8});
  EXPECT_EQ(sizes, (std::vector<std::int64_t>{-8, 4, -4, -2, 1, -1, 2}));
  for (std::size_t i = 0; i < asked.size(); ++i) {
    EXPECT_EQ(asked[i]->outcome, i == 5 ? Outcome::failed : Outcome::done);
  }
  EXPECT_EQ(numbers(asked[7]->outputs.at(0)), (std::vector<float>{8}));
  EXPECT_EQ(pool->stats().unbatched, 0U);
}

TEST_F(JoiningTest, WhatFailsTogetherTwiceInARowAndSucceedsAloneIsNotJoined) {
  make();
  const auto run = runner->action;
  bool fails = true;
  runner->action = [&](Request& request) {
    if (fails && shape_of(request.inputs.values()[0])[0] > 1) {
      throw Error(ErrorKind::fail, "it has one row");
    }
    run(request);
  };
  ask({1, 2, 3});
  fails = false;
  ask({1, 2, 3});
  fails = true;
  ask({1, 2, 3});
  EXPECT_EQ(pool->stats().unbatched, 0U);  // one that succeeded lies between
  ask({1, 2, 3});
  EXPECT_EQ(pool->stats().unbatched, 1U);
  EXPECT_EQ(pool->stats().why_unbatched, "they failed together, and succeeded alone: it has one row");
  fails = false;
  sizes.clear();
  ask({1, 2, 3});
  EXPECT_EQ(sizes, (std::vector<std::int64_t>{1, 1, 1}));
}

TEST_F(JoiningTest, ACallerWhoseRequestsFailRunsAloneAndOthersTogether) {
  make({2, hours(1), 0, {}});
  const auto run = runner->action;
  runner->action = [&](Request& request) {
    const std::vector<float> values = numbers(request.inputs.values()[0]);
    if (std::count(values.begin(), values.end(), 13) != 0) {
      throw Error(ErrorKind::invalid_argument, "unlucky");
    }
    run(request);
  };
  std::size_t sent = 0;
  const auto ask_as = [&](float value, std::uint64_t caller) { submit(request_of(value, caller)), ++sent; };
  for (int i = 0; i < 2; ++i) {
    ask_as(13, 1);
    ask_as(5, 2);
    answers.wait_for(sent);
  }
  sizes.clear();
  ask_as(13, 1);  // which waits for nobody
  answers.wait_for(sent);
  ask_as(5, 2);
  ask_as(6, 3);
  answers.wait_for(sent);
  EXPECT_EQ(sizes, (std::vector<std::int64_t>{2}));
  EXPECT_EQ(pool->stats().apart, 1U);
  for (int i = 0; i < 3; ++i) {  // its answers are right again
    ask_as(5, 1);
    answers.wait_for(sent);
  }
  sizes.clear();
  ask_as(5, 1);
  ask_as(5, 2);
  answers.wait_for(sent);
  EXPECT_EQ(sizes, (std::vector<std::int64_t>{2}));
}

TEST(Joining, AuditsTheFirstOfEachShapeAndThenASmallShareOfTheTime) {
  Joining joining;
  EXPECT_TRUE(joining.audit("a", 4, 4, milliseconds(10)).which.empty());  // nobody asked for it
  joining.set_outputs({"m", {}, {}, true, false});
  for (int i = 0; i < 16; ++i) {
    for (const std::size_t rows : {4U, 7U, 8U}) {
      const auto due = joining.audit(std::to_string(i), 4, rows, milliseconds(10));
      ASSERT_EQ(due.which.empty(), rows == 7);  // nearly as many as before
      if (rows != 7) {
        EXPECT_LT(due.which.at(0), 4U);
        EXPECT_EQ(joining.audit(std::to_string(i), 4, rows, milliseconds(0)).which.size(), 1U);  // that was not done
        joining.audited(due, milliseconds(5));
      }
    }
  }
  EXPECT_TRUE(joining.audit("33rd", 4, 4, milliseconds(10)).which.empty());
  std::size_t audits = 0;
  for (int i = 0; i < 100'000; ++i) {
    if (const auto due = joining.audit("0", 4, 4, milliseconds(10)); !due.which.empty()) {
      joining.audited(due, milliseconds(5));
      ++audits;
    }
  }
  EXPECT_NEAR(static_cast<double>(audits) * 5, 100'000 * 10 * *numbers::joining_max_share, 200);
}

TEST(Joining, AuditsAnyOfTheRequests) {
  Joining joining;
  joining.set_outputs({"m", {}, {}, true, false});
  std::vector<std::size_t> counts(4);
  for (int i = 0; i < 400; ++i) {
    ++counts.at(joining.audit("a", 4, 4, milliseconds(10)).which.at(0));
  }
  EXPECT_GT(*std::ranges::min_element(counts), 50U);
}

TEST(Joining, AuditsAllRequestsOfTheFirstJointRunsWhereNothingIsKnown) {
  Joining joining;
  joining.set_outputs({"m", {}, {}, true, true});
  for (int i = 0; i < 16; ++i) {
    const auto due = joining.audit("a", 3, 3, milliseconds(10));
    EXPECT_EQ(due.which, (std::vector<std::size_t>{0, 1, 2}));
    joining.audited(due, milliseconds(5));
  }
  EXPECT_EQ(joining.audit("a", 3, 9, milliseconds(10)).which.size(), 1U);  // these took none of the later ones' time
}

TEST_F(JoiningTest, WhereNothingIsKnownTheRequestThatDiffersIsFoundAtOnce) {
  make();
  pool->set_outputs({"m", {}, {}, true, true});
  answer = [](std::vector<float> values, const Shape& shape) {
    values.back() = values[0];  // which only the last request sees
    return with(values, shape);
  };
  EXPECT_EQ(values_of(ask({1, 2, 5})), (std::vector<float>{1, 2, 5}));
  EXPECT_EQ(pool->stats().audits, 3U);
  EXPECT_EQ(pool->stats().audit_differences, 1U);
}

// A session with one plan: a run of another size than the one before takes two seconds more.
class OnePlanTest : public JoiningTest {
 protected:
  OnePlanTest() {
    pool =
        Pool::make({.max_waiting = {}, .batching = {8, milliseconds(0), 0, {}}, .now = [this] { return now.load(); }});
    runner = add(Device::cuda(0));
    runner->action = [this](Request& request) {
      const std::lock_guard lock(mutex);  // two sessions run
      const Shape shape = shape_of(request.inputs.values()[0]);
      now = now.load() + (sizes.empty() || sizes.back() != shape[0] ? milliseconds(2000) : milliseconds(5));
      sizes.push_back(shape[0]);
      request.outputs.push_back(with(numbers(request.inputs.values()[0]), shape));
    };
  }
  // Whether it gets its own answer: as many numbers from `value` on.
  bool is_answered(std::int64_t rows, float value) {
    const auto request = answers.request();
    request->output_names = {"y"};
    request->inputs.add("x", tensor({rows, 1}, value));
    request->caller = ++total;
    submit(request);
    answers.wait_for(total);
    std::vector<float> expected(static_cast<std::size_t>(rows));
    std::iota(expected.begin(), expected.end(), value);
    return numbers(request->outputs.at(0)) == expected;
  }

  std::atomic<Pool::Clock::time_point> now{Pool::Clock::time_point(hours(1))};
  std::mutex mutex;
};

TEST_F(OnePlanTest, ARunThatWouldBePaddedWaitsForMoreOrForTheOneUnderWay) {
  for (int i = 0; i < 20; ++i) {
    is_answered(3 + i % 2, 1);  // four rows are held
  }
  const auto second = add(Device::cuda(0), runner->session());
  second->action = runner->action;
  const auto send = [this] {
    const auto request = answers.request();
    request->output_names = {"y"};
    request->inputs.add("x", tensor({1, 1}, 1));
    request->caller = ++total;
    return submit(request);
  };
  const std::size_t before = runner->runs().size() + second->runs().size();
  const auto begun = [&] { return runner->runs().size() + second->runs().size() - before; };
  runner->hold();
  second->hold();
  send();
  while (begun() < 1) {
    std::this_thread::yield();
  }
  send();
  send();
  send();
  EXPECT_EQ(pool->stats().waiting, 3U) << "one run is under way, and three rows are no full one";
  send();
  while (begun() < 2) {
    std::this_thread::yield();
  }
  EXPECT_EQ(pool->stats().waiting, 0U);
  send();
  EXPECT_EQ(pool->stats().waiting, 1U);
  runner->release();
  second->release();
  answers.wait_for(total);
  EXPECT_EQ(begun(), 3U);
}

TEST_F(OnePlanTest, WhoeverWaitsForMoreHasTheFirstTurn) {
  for (int i = 0; i < 20; ++i) {
    is_answered(3 + i % 2, 1);  // four rows are held
  }
  const auto second = add(Device::cuda(0), runner->session());
  second->action = runner->action;
  runner->hold();
  second->hold();
  const auto send = [this](std::int64_t rows) {
    const auto request = answers.request();
    request->output_names = {"y"};
    request->inputs.add("x", tensor({rows, 1}, 1));
    request->caller = ++total;
    return submit(request);
  };
  const std::size_t before = runner->runs().size() + second->runs().size();
  const auto begun = [&](std::size_t count) {
    while (runner->runs().size() + second->runs().size() - before < count) {
      std::this_thread::yield();
    }
  };
  send(3);
  begun(1);
  const auto first = send(3);
  EXPECT_EQ(pool->stats().waiting, 1U);
  const auto later = send(3);  // together they are a full run, but do not fit into one
  begun(2);
  EXPECT_EQ(pool->stats().waiting, 1U);
  EXPECT_TRUE(pool->cancel(later)) << "it waits, and the first one runs";
  runner->release();
  second->release();
  answers.wait_for(total);
  EXPECT_EQ(first->outcome, Outcome::done);
  EXPECT_EQ(later->outcome, Outcome::cancelled);
}

TEST_F(OnePlanTest, RunsArePaddedToOneSize) {
  for (int i = 0; i < 20; ++i) {
    EXPECT_TRUE(is_answered(3 + i % 2, static_cast<float>(i)));
  }
  EXPECT_EQ(std::vector(sizes.end() - 8, sizes.end()), std::vector<std::int64_t>(8, 4));
  EXPECT_NE(pool->stats().devices[0].why_rows.find("runs are padded to 4 rows"), std::string::npos);
  const std::size_t before = sizes.size();
  EXPECT_TRUE(is_answered(6, 1)) << "more rows are padded, too, from the next run on";
  EXPECT_TRUE(is_answered(5, 2));
  EXPECT_EQ(std::vector(sizes.begin() + static_cast<std::ptrdiff_t>(before), sizes.end()),
            (std::vector<std::int64_t>{6, 8}));
}

class AuditTest : public RealSessions {
 protected:
  template <typename Type>
  static std::shared_ptr<Request> answer(const std::vector<Type>& values, ONNXTensorElementDataType type) {
    auto request = std::make_shared<Request>();
    request->output_names = {"y"};
    const std::vector<std::int64_t> shape{1, static_cast<std::int64_t>(values.size())};
    Ort::Value y = new_tensor(type, shape);
    std::memcpy(y.GetTensorMutableRawData(), values.data(), values.size() * sizeof(Type));
    request->outputs.push_back(std::move(y));
    return request;
  }
  static Difference compare_floats(const std::vector<float>& joined, const std::vector<float>& alone, float input = 0) {
    const auto one = answer(joined, ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT);
    const auto other = answer(alone, ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT);
    other->inputs.add("x", tensor({1, 1}, input));
    return compare(*one, *other);
  }
};

TEST_F(AuditTest, FloatsMayDifferByRounding) {
  const float infinity = std::numeric_limits<float>::infinity();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_FALSE(compare_floats({1, 100, nan, infinity}, {1.5F, 100.5F, nan, infinity}));
  EXPECT_TRUE(compare_floats({1, 98}, {1, 100}));
  EXPECT_TRUE(compare_floats({1, nan}, {1, 100}));
  EXPECT_TRUE(compare_floats({1, -infinity}, {1, infinity}));
  EXPECT_TRUE(compare_floats({1e-4F}, {-1e-4F}));
  EXPECT_FALSE(compare_floats({1e-4F}, {-1e-4F}, 1000));  // what is left of 1000 - 1000
  EXPECT_TRUE(compare_floats({1, 1, 1, 2}, {1, 1, 1, 1}).in_floats);
  EXPECT_FALSE(compare_floats({1, 1, 1, 2}, {1, 1, 1, 1}).widely);
  EXPECT_TRUE(compare_floats({1, 1, 2, 2}, {1, 1, 1, 1}).widely);
}

TEST_F(AuditTest, FarLargerNumbersAreComparedByThemselves) {
  EXPECT_TRUE(compare_floats({1, -1e9F}, {2, -1e9F}));
  EXPECT_TRUE(compare_floats({3, 30, -1e4F}, {3, 40, -1e4F}));
  EXPECT_TRUE(compare_floats({3, -1e4F, 1e9F}, {2, -1e4F, 1e9F}));
  EXPECT_TRUE(compare_floats({0, -1e9F}, {1, -1e9F}));
  EXPECT_TRUE(compare_floats({3, 3}, {3, -1e9F}));
  EXPECT_FALSE(compare_floats({3, -1e9F, 1e9F}, {3.01F, -1e9F + 128, 1e9F}));
  EXPECT_FALSE(compare_floats({0.9999F, 1e-6F}, {0.9999F, 2e-6F})) << "of a softmax";
  EXPECT_FALSE(compare_floats({1, 9000, 100, 1000}, {50, 9000, 100, 1000})) << "there is no gap";
  const Difference found = compare_floats({1, -1e9F}, {2, -1e9F - 640});
  EXPECT_NE(found.text.find("by 1, and its largest value is 2"), std::string::npos) << found.text;
}

TEST_F(AuditTest, ShortFloatsToo) {
  const auto differ = [](auto one, auto other, ONNXTensorElementDataType type) {
    return static_cast<bool>(compare(*answer(std::vector{one}, type), *answer(std::vector{other}, type)));
  };
  const auto half = ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16;
  const auto brain = ONNX_TENSOR_ELEMENT_DATA_TYPE_BFLOAT16;
  EXPECT_FALSE(differ(Ort::Float16_t(1.0F), Ort::Float16_t(1.01F), half));
  EXPECT_TRUE(differ(Ort::Float16_t(1.0F), Ort::Float16_t(1.1F), half));
  EXPECT_FALSE(differ(Ort::BFloat16_t(1.0F), Ort::BFloat16_t(1.04F), brain));
  EXPECT_TRUE(differ(Ort::BFloat16_t(1.0F), Ort::BFloat16_t(1.2F), brain));
  const auto eight = ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT8E4M3FN;
  EXPECT_FALSE(differ(std::uint8_t{0x38}, std::uint8_t{0x3a}, eight));
  EXPECT_TRUE(differ(std::uint8_t{0x38}, std::uint8_t{0x3b}, eight));
  EXPECT_FALSE(differ(std::uint8_t{0x81}, std::uint8_t{0x01}, eight));  // about zero
  EXPECT_TRUE(differ(std::uint8_t{0xb8}, std::uint8_t{0x38}, eight));
}

TEST_F(AuditTest, OfIntegersAllBitsCount) {
  const auto of = [](const std::vector<std::int64_t>& values) {
    return answer(values, ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64);
  };
  EXPECT_FALSE(compare(*of({1, 2}), *of({1, 2})));
  const Difference found = compare(*of({1, 2, 4}), *of({1, 2, 5}));
  EXPECT_EQ(found.text, "output 'y' of a joint run differs from the answer to the request alone in 1 of 3 elements");
  EXPECT_FALSE(found.in_floats);
  EXPECT_TRUE(compare(*of({1, 2}), *of({1, 2, 3})).in_shape);
}

}  // namespace
}  // namespace ortmulti::tests
