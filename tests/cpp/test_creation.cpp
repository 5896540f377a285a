#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/create/creation.hpp"
#include "core/cuda/startup.hpp"
#include "core/onnx/weight_list.hpp"
#include "core/weights/plan.hpp"
#include "failing_threads.hpp"
#include "fake_cuda.hpp"
#include "test_support.hpp"

namespace ortmulti::tests {
namespace {

using Providers = std::vector<Provider>;
using std::chrono::hours;
using std::chrono::milliseconds;

// Sessions that can be told apart: the CPU provider takes no notice of the option.
Providers cpu(int number) { return {{"CPUExecutionProvider", {{"number", std::to_string(number)}}}}; }
Provider unknown_provider() { return {"NoSuchExecutionProvider", {}}; }

CreationRequest request_for(const std::string& model_name, int sessions) {
  CreationRequest request;
  request.model = model(model_name);
  for (int i = 0; i < sessions; ++i) {
    request.sessions.push_back(cpu(i));
  }
  request.options.intra_op_num_threads = 1;
  return request;
}

// Waits for all of them; the indices of those that became ready.
std::vector<std::size_t> wait_for_all(Creation& creation) {
  std::vector<std::size_t> ready;
  for (bool finished = false; !finished;) {
    const auto now = creation.wait(hours(1));
    ready.insert(ready.end(), now.ready.begin(), now.ready.end());
    finished = now.finished;
  }
  std::ranges::sort(ready);
  return ready;
}

std::vector<Span> spans_of(const Creation& creation, const std::string& name) {
  std::vector<Span> found;
  for (const Span& span : creation.timeline()->spans()) {
    if (span.name == name) {
      found.push_back(span);
    }
  }
  std::ranges::sort(found, [](const Span& a, const Span& b) { return a.start_ns < b.start_ns; });
  return found;
}

bool overlap(const std::vector<Span>& in_order_of_start) {
  for (std::size_t i = 1; i < in_order_of_start.size(); ++i) {
    if (in_order_of_start[i].start_ns < in_order_of_start[i - 1].end_ns) {
      return true;
    }
  }
  return false;
}

class Factory : public RealSessions {
 protected:
  void TearDown() override { join_cancelled_creations(); }

  // ONNX Runtime uses these bytes in place, so that each session that is left holds the owner.
  static CreationRequest request_that_shows_leaks(int sessions, const std::shared_ptr<const std::string>& bytes) {
    CreationRequest request = request_for("wide", sessions);
    request.model = model_of(bytes);
    request.options.config_entries["session.use_ort_model_bytes_directly"] = "1";
    return request;
  }
  static std::shared_ptr<const std::string> bytes_in_ort_format() {
    const TemporaryFolder folder;
    SessionOptions save;
    save.optimized_model_filepath = folder / "wide.ort";
    save.config_entries["session.save_model_format"] = "ORT";
    make_session("wide", save);
    return std::make_shared<const std::string>(read_file(save.optimized_model_filepath));
  }
};

TEST_F(Factory, CreatesManyAtOnceInTheOrderAskedForRoundAfterRound) {
  constexpr int sessions = 6;
  for (int round = 0; round < 30; ++round) {
    const auto creation = Creation::start(runtime(), request_for("add", sessions));
    EXPECT_EQ(creation->size(), static_cast<std::size_t>(sessions));
    EXPECT_EQ(wait_for_all(*creation), (std::vector<std::size_t>{0, 1, 2, 3, 4, 5}));
    const auto created = creation->take();
    ASSERT_EQ(created.size(), static_cast<std::size_t>(sessions));
    std::set<std::int64_t> threads;
    for (const Span& span : spans_of(*creation, "create session")) {
      threads.insert(span.thread);
      EXPECT_EQ(span.device, "cpu");
    }
    EXPECT_EQ(threads.size(), static_cast<std::size_t>(sessions)) << "a thread for each";
    for (int i = 0; i < sessions; ++i) {
      Session& session = *created[static_cast<std::size_t>(i)];
      EXPECT_EQ(session.providers().at(0).options.at("number"), std::to_string(i));
      EXPECT_EQ(creation->device(static_cast<std::size_t>(i)), Device::cpu());
      EXPECT_EQ(run_add(session), sum_of_add());
    }
  }
}

TEST_F(Factory, OfNothingIsFinishedAtOnce) {
  const auto creation = Creation::start(runtime(), request_for("add", 0));
  const auto now = creation->wait(hours(1));
  EXPECT_TRUE(now.finished);
  EXPECT_TRUE(now.ready.empty());
  EXPECT_TRUE(creation->take().empty());
}

TEST_F(Factory, OneFailureClosesTheOthersAndIsNamed) {
  const auto bytes = bytes_in_ort_format();
  for (const std::size_t failing : {0U, 2U, 4U}) {
    CreationRequest request = request_that_shows_leaks(5, bytes);
    request.sessions[failing].insert(request.sessions[failing].begin(), unknown_provider());
    auto creation = Creation::start(runtime(), request);
    wait_for_all(*creation);
    for (int i = 0; i < 2; ++i) {  // and again, when asked again
      EXPECT_TRUE(throws({"NoSuchExecutionProvider", "on cpu", "a model of"}, [&] { creation->take(); }));
    }
    request = {};
    creation.reset();
    EXPECT_EQ(bytes.use_count(), 1) << "sessions are left";
  }
}

TEST_F(Factory, SessionsAreGivenAwayOneByOneAndOthersKeepGoing) {
  const auto bytes = bytes_in_ort_format();
  CreationRequest request = request_that_shows_leaks(4, bytes);
  request.keep_going = true;
  request.timeline = std::make_shared<Timeline>();
  request.sessions[1].insert(request.sessions[1].begin(), unknown_provider());
  auto creation = Creation::start(runtime(), request);
  EXPECT_EQ(creation->timeline(), request.timeline);
  std::vector<std::size_t> given;
  std::vector<Creation::Failure> failures;
  std::shared_ptr<Session> kept;
  const auto finished = [&] {
    const auto now = creation->wait(hours(1));
    for (const std::size_t index : now.ready) {
      given.push_back(index);
      auto session = creation->take(index);
      EXPECT_NE(session, nullptr);
      EXPECT_EQ(creation->take(index), nullptr);
      if (index == 2) {
        kept = std::move(session);
      }
    }
    failures.insert(failures.end(), now.failed.begin(), now.failed.end());
    return now.finished;
  };
  while (!finished()) {
  }
  std::ranges::sort(given);
  EXPECT_EQ(given, (std::vector<std::size_t>{0, 2, 3}));
  ASSERT_EQ(failures.size(), 1U);
  EXPECT_EQ(failures[0].index, 1U);
  EXPECT_TRUE(throws(ErrorKind::invalid_argument, {"NoSuchExecutionProvider"},
                     [&] { std::rethrow_exception(failures[0].error); }));
  EXPECT_EQ(creation->take(), std::vector<std::shared_ptr<Session>>(4));
  creation.reset();
  request = {};
  failures.clear();
  EXPECT_FALSE(kept->closed()) << "it is whose it was given to";
  kept.reset();
  EXPECT_EQ(bytes.use_count(), 1) << "sessions are left";
}

TEST_F(Factory, FollowersOfASessionThatWasClosedAreAnError) {
  std::atomic<bool> stop{false};
  std::thread closing([&] {
    while (!stop) {
      close_all_sessions();  // as at the end of the process, from when on no session may be used
    }
  });
  int closed = 0;
  for (int round = 0; closed < 3 && round < 1000; ++round) {
    CreationRequest request = request_for("add", 2000);
    request.one_session_each = true;
    request.keep_going = round % 2 == 0;
    const auto creation = Creation::start(runtime(), request);
    try {
      for (const auto& session : creation->take()) {
        EXPECT_NE(session, nullptr);
      }
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::closed) << error.what();
      ++closed;
    }
  }
  EXPECT_EQ(closed, 3);
  stop = true;
  closing.join();
}

// "external" in a folder of its own, and its weights.
struct ExternalModel {
  ExternalModel() {
    folder.write("external.data",
                 read_file(model_path("external").substr(0, model_path("external").rfind('/')) + "/external.data"));
  }
  CreationRequest request(WeightList list) const {
    CreationRequest made = request_for("external", 1);
    made.model = {path};
    made.weights = SharedWeights{std::make_shared<const WeightPlan>(plan_weights(std::move(list))), nullptr, {}, true};
    return made;
  }

  TemporaryFolder folder;
  std::string path = folder.write("external.onnx", read_file(model_path("external")));
};

TEST_F(Factory, AModelThatWasReplacedAfterItsWeightsWereListedIsAnError) {
  const ExternalModel model;
  const WeightList list = shareable_weights(model.path);
  EXPECT_EQ(Creation::start(runtime(), model.request(list))->take().size(), 1U);
  model.folder.write("external.onnx", read_file(model_path("add")));
  EXPECT_TRUE(throws(ErrorKind::weights, {"external.onnx", "changed or replaced"},
                     [&] { Creation::start(runtime(), model.request(list))->take(); }));
}

TEST_F(Factory, AFileThatIsChangedWhileASessionIsCreatedIsAnError) {
  const ExternalModel model;
  WeightList list = shareable_weights(model.path);
  const std::string saved = model.folder.write("saved.onnx", "to be overwritten by the session's creation");
  add_source(list, file_source(saved));
  CreationRequest request = model.request(list);
  request.options.optimized_model_filepath = saved;
  EXPECT_TRUE(throws(ErrorKind::weights, {"saved.onnx", "changed or replaced"},
                     [&] { Creation::start(runtime(), request)->take(); }));
}

TEST_F(Factory, WhatOnnxRuntimeRefusesOfTheWeightsIsAnErrorWithContext) {
  const ExternalModel model;
  WeightList list = shareable_weights(model.path);
  list.weights[0].shape = {512, 512};
  EXPECT_TRUE(throws(ErrorKind::invalid_argument,
                     {"creating a session of", "external.onnx' on cpu", "not enough space"},
                     [&] { Creation::start(runtime(), model.request(list))->take(); }));
}

TEST_F(Factory, WhereAllFailThatIsThrownThoughTheyKeepGoing) {
  CreationRequest request = request_for("truncated", 3);
  request.keep_going = true;
  const auto creation = Creation::start(runtime(), request);
  EXPECT_TRUE(throws(ErrorKind::invalid_protobuf, {"truncated.onnx"}, [&] { creation->take(); }));
  EXPECT_EQ(creation->wait(milliseconds(0)).failed.size(), 3U);
}

TEST_F(Factory, WhatWasGivenAwayIsNotClosedByAnothersFailure) {
  CreationRequest request = request_for("add", 2);
  request.serialize = Serialize::all;
  const auto creation = Creation::start(runtime(), request);
  wait_for_all(*creation);
  const auto first = creation->take(0);
  creation->cancel();
  EXPECT_FALSE(first->closed());
  EXPECT_EQ(creation->take(1), nullptr);
}

TEST_F(Factory, TheFirstFailureInOrderIsTheOneThatIsThrown) {
  CreationRequest request = request_for("add", 3);
  request.serialize = Serialize::none;
  request.sessions[0].insert(request.sessions[0].begin(), {"FirstExecutionProvider", {}});
  for (int round = 0; round < 20; ++round) {
    EXPECT_TRUE(throws({"provider FirstExecutionProvider"}, [&] { Creation::start(runtime(), request)->take(); }));
  }
}

TEST_F(Factory, SerializedCreationsOfADeviceNeverOverlap) {
  for (const Serialize serialize : {Serialize::device, Serialize::all}) {
    for (int round = 0; round < 10; ++round) {
      CreationRequest request = request_for("wide", 5);
      request.serialize = serialize;
      const auto creation = Creation::start(runtime(), request);
      EXPECT_EQ(creation->take().size(), 5U);
      const auto spans = spans_of(*creation, "create session");
      EXPECT_EQ(spans.size(), 5U);
      EXPECT_FALSE(overlap(spans));
      EXPECT_EQ(spans_of(*creation, "wait for turn").size(), 5U);
    }
  }
}

TEST_F(Factory, OthersDo) {
  for (const Serialize serialize : {Serialize::none, Serialize::automatic}) {
    bool overlapped = false;
    for (int round = 0; round < 200 && !overlapped; ++round) {
      CreationRequest request = request_for("wide", 5);
      request.serialize = serialize;
      const auto creation = Creation::start(runtime(), request);
      creation->take();
      EXPECT_TRUE(spans_of(*creation, "wait for turn").empty());
      overlapped = overlap(spans_of(*creation, "create session"));
    }
    EXPECT_TRUE(overlapped);
  }
}

// A GPU whose context waits for a hold, which a creation gets.
class FactoryWithHold : public Factory {
 protected:
  FactoryWithHold() {
    FakeCuda::reset();
    startup.begin_contexts(std::vector<int>{1});
  }
  CreationRequest request_with_hold() const {
    CreationRequest request = request_for("add", 2);
    request.hold = hold;
    return request;
  }
  void wait_for_context() { startup.make_current(1); }

  CudaDriver driver = FakeCuda::table();
  CudaStartup startup{&driver, ""};
  std::shared_ptr<CudaStartup::Hold> hold = std::make_shared<CudaStartup::Hold>(startup, 0);
};

TEST_F(FactoryWithHold, LeavesItToWhoGivesTheSessionsOn) {
  const auto creation = Creation::start(runtime(), request_with_hold());
  EXPECT_EQ(creation->take().size(), 2U);
  EXPECT_FALSE(startup.has_context(1));
}

class WhereOneFails : public FactoryWithHold, public testing::WithParamInterface<bool> {};

TEST_P(WhereOneFails, TheHoldEnds) {
  CreationRequest request = request_with_hold();
  request.keep_going = GetParam();
  request.sessions[0].insert(request.sessions[0].begin(), unknown_provider());
  const auto creation = Creation::start(runtime(), request);
  wait_for_context();
  wait_for_all(*creation);
  creation->cancel();  // else it may be a thread that has it last, and that nobody joins
}

INSTANTIATE_TEST_SUITE_P(Others, WhereOneFails, testing::Bool());

TEST_F(FactoryWithHold, EndsItWhereOneMayHaveTheTurnOfAll) {
  CreationRequest request = request_with_hold();
  request.serialize = Serialize::all;
  const auto creation = Creation::start(runtime(), request);
  wait_for_context();
  EXPECT_EQ(creation->take().size(), 2U);
}

TEST_F(FactoryWithHold, RefusesWeightsBesideASessionOnAnotherDevice) {
  hold->release();
  const auto empty = std::make_shared<const WeightPlan>();
  const auto base = std::make_shared<const CudaWeightStore>(startup, 1, empty, nullptr);
  CreationRequest request = request_for("add", 1);
  request.weights = SharedWeights{std::make_shared<const WeightPlan>(plan_weights({}, base)), nullptr, {}, true};
  EXPECT_TRUE(throws(ErrorKind::invalid_argument, {"cuda:1", "cpu"}, [&] { Creation::start(runtime(), request); }));
}

TEST_F(FactoryWithHold, EndsItWhenCancelled) {
  const auto creation = Creation::start(runtime(), request_with_hold());
  creation->cancel();
  wait_for_context();
}

TEST_F(Factory, CancelledAtOnceLeavesNothing) {
  const auto bytes = bytes_in_ort_format();
  for (int round = 0; round < 20; ++round) {
    auto creation = Creation::start(runtime(), request_that_shows_leaks(4, bytes));
    creation->cancel();
    creation->cancel();
    join_cancelled_creations();
    join_cancelled_creations();
    EXPECT_TRUE(creation->wait(milliseconds(0)).finished);
    EXPECT_TRUE(throws(ErrorKind::closed, {"cancelled"}, [&] { creation->take(); }));
    creation.reset();
    EXPECT_EQ(bytes.use_count(), 1);
  }
}

TEST_F(Factory, CancelledAfterTheEndLeavesNothing) {
  const auto bytes = bytes_in_ort_format();
  auto creation = Creation::start(runtime(), request_that_shows_leaks(4, bytes));
  EXPECT_EQ(wait_for_all(*creation).size(), 4U);
  EXPECT_GE(bytes.use_count(), 5) << "the test shows nothing";
  creation->cancel();
  join_cancelled_creations();
  creation.reset();
  EXPECT_EQ(bytes.use_count(), 1);
}

TEST_F(Factory, DroppedWithoutAWordItEndsInOrder) {
  const auto bytes = bytes_in_ort_format();
  for (int round = 0; round < 10; ++round) {
    Creation::start(runtime(), request_that_shows_leaks(3, bytes));
  }
  while (bytes.use_count() > 1) {  // the last of its threads frees it
    std::this_thread::yield();
  }
  join_cancelled_creations();
}

// Creations that stop midway: ONNX Runtime writes the optimized model into a pipe that nobody empties.
class FactoryMidway : public Factory {
 protected:
  CreationRequest blocking_request(int sessions, Serialize serialize) {
    EXPECT_EQ(mkfifo(pipe_path.c_str(), 0600), 0);
    CreationRequest request = request_for("wide", sessions);
    request.serialize = serialize;
    request.options.optimized_model_filepath = pipe_path;
    return request;
  }
  // Returns once a creation is midway: opening for reading waits for the writer.
  void wait_until_midway() {
    read_end = open(pipe_path.c_str(), O_RDONLY | O_CLOEXEC);
    ASSERT_GE(read_end, 0);
    write_end = open(pipe_path.c_str(), O_WRONLY | O_CLOEXEC);  // so that the end of one writer is not the end of all
    ASSERT_GE(write_end, 0);
  }
  // Lets all of them go on.
  void empty_the_pipe() {
    emptier = std::async(std::launch::async, [this] {
      std::array<char, 65536> block{};
      while (read(read_end, block.data(), block.size()) > 0) {
      }
    });
  }
  void TearDown() override {
    Factory::TearDown();
    if (write_end >= 0) {
      close(write_end);  // the last one: the reader sees the end
    }
    if (emptier.valid()) {
      emptier.get();
    }
    if (read_end >= 0) {
      close(read_end);
    }
  }

  TemporaryFolder folder;
  std::string pipe_path = folder / "optimized.onnx";
  int read_end = -1;
  int write_end = -1;
  std::future<void> emptier;
};

TEST_F(FactoryMidway, IsNotFinishedAndAWaitEndsAtItsTime) {
  const auto creation = Creation::start(runtime(), blocking_request(2, Serialize::none));
  wait_until_midway();
  const auto now = creation->wait(milliseconds(1));
  EXPECT_FALSE(now.finished);
  EXPECT_TRUE(now.ready.empty());
  empty_the_pipe();
  EXPECT_EQ(wait_for_all(*creation).size(), 2U);
  creation->take();
}

TEST_F(FactoryMidway, CancelReturnsAtOnceAndTheRestIsFreedBehindIt) {
  auto creation = Creation::start(runtime(), blocking_request(4, Serialize::all));
  const std::weak_ptr<Creation> watched = creation;
  const std::shared_ptr<Timeline> timeline = creation->timeline();
  wait_until_midway();
  creation->cancel();  // would hang if it waited
  EXPECT_FALSE(creation->wait(milliseconds(0)).finished);
  creation.reset();
  EXPECT_FALSE(watched.expired()) << "its threads hold what they need";

  auto joined = std::async(std::launch::async, join_cancelled_creations);
  EXPECT_EQ(joined.wait_for(milliseconds(0)), std::future_status::timeout) << "one is still being created";
  empty_the_pipe();
  joined.get();
  EXPECT_TRUE(watched.expired());
  const auto spans = timeline->spans();
  EXPECT_EQ(std::count_if(spans.begin(), spans.end(), [](const Span& span) { return span.name == "create session"; }),
            1)
      << "no other has begun";
}

TEST_F(Factory, WithoutThreadsIsAnErrorAndLeavesNothing) {
  const auto bytes = std::make_shared<const std::string>(read_file(model_path("add")));
  CreationRequest request = request_for("add", 3);
  request.model = model_of(bytes);
  {
    const NoThreads none;
    EXPECT_TRUE(throws(ErrorKind::runtime_exception, {"a thread for each of 3 sessions", "allowed 0"},
                       [&] { Creation::start(runtime(), std::move(request)); }));
  }
  request = {};
  EXPECT_EQ(bytes.use_count(), 1);
}

TEST(FactoryVersions, FromTheFirstReleaseThatWasTriedOnSessionsOfAGpuAreCreatedAtOnce) {
  for (const char* const version : {"1.30.0", "1.30", "1.31.1", "1.32.0", "1.99.0", "2.0.0"}) {
    EXPECT_EQ(why_in_turn(version), "") << version;
  }
  for (const char* const version : {"", "0.31.0", "1.0.0", "1.29.9", "1.3.0"}) {
    EXPECT_NE(why_in_turn(version).find("ONNX Runtime " + std::string(version) + " is older than 1.30"),
              std::string::npos);
    EXPECT_NE(why_in_turn(version).find("serialize='none'"), std::string::npos);
  }
}

}  // namespace
}  // namespace ortmulti::tests
