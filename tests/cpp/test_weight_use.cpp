#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "core/ort/weight_use.hpp"
#include "host_weights.hpp"
#include "test_support.hpp"

namespace ortmulti::tests {
namespace {

using Names = std::vector<std::string>;

SessionOptions options_of(int severity, const std::string& logid = "") {
  SessionOptions options = with_threads(1);
  options.log_severity_level = severity;
  options.logid = logid;
  return options;
}

class UseOfWeights : public RealSessions {
 protected:
  void TearDown() override { take_log(); }
};

TEST_F(UseOfWeights, AllThatAreGivenAreUsed) {
  const auto weights = std::make_shared<HostWeights>(supplied_weights());
  const auto session = make_session_over("supplied", weights);
  EXPECT_EQ(session->weight_use().used, supplied_weights().size());
  EXPECT_EQ(session->weight_use().refused, Names{});
  EXPECT_EQ(run_ones(*session), result_of_ones());
}

TEST_F(UseOfWeights, TheyAreUsedInPlace) {
  const auto weights = std::make_shared<HostWeights>(supplied_weights());
  SessionOptions options;
  options.config_entries["session.disable_prepacking"] = "1";
  const auto session = make_session_over("supplied", weights, options);
  EXPECT_EQ(run_ones(*session), result_of_ones());
  std::fill_n(weights->values("b"), wide, 10.0F);
  EXPECT_EQ(run_ones(*session), std::vector<float>(wide, 12));
}

TEST_F(UseOfWeights, ThoseOfSubGraphsCountToo) {
  const auto weights = std::make_shared<HostWeights>(
      std::vector<FloatTensor>{diagonal("outer", 2), row("inner of then", 1), row("inner of else", 5)});
  const auto session = make_session_over("branches", weights);
  EXPECT_EQ(session->weight_use().used, 3U);
  EXPECT_EQ(session->weight_use().refused, Names{});

  for (const bool value : {true, false}) {
    bool which = value;
    RunInputs inputs;
    inputs.add("which", Ort::Value::CreateTensor<bool>(HostWeights::host(), &which, 1, nullptr, 0));
    inputs.add("x", tensor({1, wide}));
    const std::vector<float> y = numbers(session->run(Ort::RunOptions{nullptr}, inputs, {"y"}).front());
    for (std::size_t i = 0; i < wide; ++i) {
      EXPECT_EQ(y[i], 2.0F * static_cast<float>(i) + (value ? 1.0F : 5.0F));
    }
  }
}

TEST_F(UseOfWeights, UnknownNamesAreNeitherUsedNorRefused) {
  auto given = supplied_weights();
  given.push_back(row("of no graph", 1));
  const auto weights = std::make_shared<HostWeights>(given);
  const auto session = make_session_over("supplied", weights);
  EXPECT_EQ(session->weight_use().used, 2U);
  EXPECT_EQ(session->weight_use().refused, Names{});
  EXPECT_EQ(run_ones(*session), result_of_ones());
}

TEST_F(UseOfWeights, SoAreThoseThatOptimizationFolded) {
  SessionOptions options;
  for (const int level : {ORT_ENABLE_ALL, ORT_DISABLE_ALL}) {
    options.graph_optimization_level = level;
    const auto weights =
        std::make_shared<HostWeights>(std::vector<FloatTensor>{{"two", {2}, {1}}, {"three", {3}, {1}}});
    const auto session = make_session_over("foldable", weights, options);
    EXPECT_EQ(session->weight_use().used, level == ORT_ENABLE_ALL ? 0U : 2U);
    EXPECT_EQ(session->weight_use().refused, Names{});
  }
}

TEST_F(UseOfWeights, ThoseOnAnotherDeviceAreRefusedAndTheModelsOwnUsed) {
  const auto weights = std::make_shared<HostWeights>(std::vector<FloatTensor>{diagonal("w", 100)},
                                                     Ort::MemoryInfo("Cuda", OrtDeviceAllocator, 0, OrtMemTypeDefault));
  const auto session = make_session_over("external", weights);
  EXPECT_EQ(session->weight_use().used, 0U);
  EXPECT_EQ(session->weight_use().refused, Names{"w"});
  EXPECT_EQ(run_ones(*session), std::vector<float>(wide, 2));
  for (const LogRecord& record : take_log()) {
    ADD_FAILURE() << "the user gave no weights and is told: " << record.message;
  }
}

TEST_F(UseOfWeights, OneThatIsMissingIsAnErrorWhereTheFileIsEmpty) {
  auto given = supplied_weights();
  given.pop_back();
  std::weak_ptr<HostWeights> watched;
  {
    const auto weights = std::make_shared<HostWeights>(given);
    watched = weights;
    EXPECT_TRUE(throws({"supplied.onnx"}, [&] { make_session_over("supplied", weights); }));
  }
  EXPECT_TRUE(watched.expired()) << "a session that failed holds nothing";
}

TEST_F(UseOfWeights, AStoreThatThrowsIsAnErrorOfTheCreation) {
  class Broken : public HostWeights {
   public:
    Broken() : HostWeights(supplied_weights()) {}
    void add_to(Ort::SessionOptions& options) const override {
      HostWeights::add_to(options);
      HostWeights::add_to(options);  // ONNX Runtime takes a name once
    }
  };
  EXPECT_THROW(make_session_over("supplied", std::make_shared<Broken>()), Error);
}

TEST_F(UseOfWeights, IsNothingForASessionWithoutAStore) {
  const auto session = make_session("add");
  EXPECT_EQ(session->weight_use().used, 0U);
  EXPECT_EQ(session->weight_use().refused, Names{});
}

TEST_F(UseOfWeights, IsToldApartWhereManyAreCreatedAtOnce) {
  const auto weights = std::make_shared<HostWeights>(supplied_weights());
  const auto other = std::make_shared<HostWeights>(std::vector<FloatTensor>{diagonal("w", 100)});
  in_threads(8, [&](int i) {
    const bool supplied = i % 2 == 0;
    for (int round = 0; round < 20; ++round) {
      const SessionOptions options = options_of(-1, "the same name");
      const auto session =
          supplied ? make_session_over("supplied", weights, options) : make_session_over("external", other, options);
      EXPECT_EQ(session->weight_use().used, supplied ? 2U : 1U);
      EXPECT_EQ(session->weight_use().refused, Names{});
      EXPECT_EQ(run_ones(*session).at(0), supplied ? 3.0F : 100.0F);
    }
  });
}

TEST_F(UseOfWeights, IsKnownInAForkedChildToo) {
  const auto weights = std::make_shared<HostWeights>(supplied_weights());
  const auto before = make_session_over("supplied", weights, options_of(-1, "before"));
  EXPECT_TRUE(in_forked_child([&] {
    const auto session = make_session_over("supplied", weights, options_of(-1));
    return session->weight_use().used == 2 && run_ones(*session) == result_of_ones() &&
           run_ones(*before) == result_of_ones() && take_log().empty();
  }));
}

// What a user sees of a session's log.
using Seen = std::vector<std::array<std::string, 3>>;

Seen log_of(const std::string& model_name, const std::shared_ptr<HostWeights>& weights, const SessionOptions& options,
            const std::string& tag) {
  take_log();
  {
    const auto session = make_session_over(model_name, weights, options);
    run_ones(*session);
    Ort::RunOptions run_options;
    run_options.SetRunTag(tag.c_str());
    run_ones(*session, run_options);
    run_options.SetRunLogSeverityLevel(0);
    run_options.SetRunLogVerbosityLevel(1);
    run_ones(*session, run_options);
  }
  Seen seen;
  for (const LogRecord& record : take_log()) {
    if (record.message.find("user supplied initializer") == std::string::npos) {
      seen.push_back({record.logger, std::to_string(record.severity), record.message});
    }
  }
  std::ranges::sort(seen);
  return seen;
}

TEST_F(UseOfWeights, DoesNotShowInTheLog) {
  // The model's own weights, so that the same is done with and without a store.
  const auto weights = std::make_shared<HostWeights>(std::vector<FloatTensor>{diagonal("w", 2)});
  for (const int severity : {-1, 0, 1, 2, 3, 4}) {
    for (const char* logid : {"", "a session's name"}) {
      for (const char* tag : {"", "a run's tag"}) {
        const SessionOptions options = options_of(severity, logid);
        const Seen with = log_of("external", weights, options, tag);
        const Seen without = log_of("external", nullptr, options, tag);
        const auto names = [](const Seen& seen) {
          Names all;
          for (const auto& record : seen) {
            all.push_back(record[1] + " " + record[0]);
          }
          all.erase(std::ranges::unique(all).begin(), all.end());
          return all;
        };
        EXPECT_EQ(names(with), names(without)) << severity << ", '" << logid << "', '" << tag << "'";
        for (const auto& record : with) {
          EXPECT_EQ(record[2].find('\x1f'), std::string::npos) << record[2];
        }
      }
    }
  }
}

TEST_F(UseOfWeights, TheLinesAreThereForWhoAskedForThem) {
  const auto weights = std::make_shared<HostWeights>(supplied_weights());
  const auto session = make_session_over("supplied", weights, options_of(1, "name"));
  const auto log = take_log();
  EXPECT_EQ(std::count_if(log.begin(), log.end(),
                          [](const LogRecord& record) {
                            return record.logger == "name" && record.severity == 1 &&
                                   record.message.rfind("Using user supplied initializer", 0) == 0;
                          }),
            2);
}

TEST_F(UseOfWeights, RunsLogNothingForIt) {
  // At this level of its own, all that a run logs is what the session's logger is asked for.
  const auto session =
      make_session_over("supplied", std::make_shared<HostWeights>(supplied_weights()), options_of(1, "name"));
  Ort::RunOptions quiet;
  quiet.SetRunLogSeverityLevel(2);
  run_ones(*session, quiet);  // the first one sets up what the others use
  take_log();
  run_ones(*session, quiet);
  for (const LogRecord& record : take_log()) {
    ADD_FAILURE() << record.message;
  }
}

// --- Without ONNX Runtime: records as it writes them
// ------------------------------------------------------------------

// A record of the session that `watch` watches.
LogRecord record_of(const WeightUseWatch& watch, int severity, const std::string& message,
                    const std::string& after = "") {
  return {severity, "onnxruntime", watch.logid() + after, "somewhere.cc:1 there", message};
}

std::string used_line(const std::string& name) { return "Using user supplied initializer with name (" + name + ")."; }
std::string refused_line(const std::string& name) {
  return "Cannot use user supplied initializer with name: (" + name +
         ") because the ORT planned memory location device Device:[DeviceType:0 ] ) is different from what is supplied "
         "(Device:[DeviceType:1 ])";
}

TEST(WeightUseWatching, ReadsNamesOfAnyKind) {
  const WeightUseWatch watch(options_of(-1));
  const Names names = {"w",
                       "a)",
                       ").",
                       "a). b (c).",
                       "line\nbreak",
                       "",
                       std::string(100'000, 'n'),
                       "é漢",
                       ") because the ORT planned memory location"};
  for (const std::string& name : names) {
    LogRecord record = record_of(watch, 1, used_line(name));
    EXPECT_FALSE(pass_on(record)) << name;
  }
  LogRecord again = record_of(watch, 1, used_line("w"));
  EXPECT_FALSE(pass_on(again));
  EXPECT_EQ(watch.use().used, names.size());

  const WeightUseWatch refusing(options_of(-1));
  for (const std::string& name : names) {
    LogRecord record = record_of(refusing, 2, refused_line(name));
    EXPECT_FALSE(pass_on(record)) << name;
  }
  Names sorted = names;
  std::ranges::sort(sorted);
  EXPECT_EQ(refusing.use().refused, sorted);
  EXPECT_EQ(refusing.use().used, 0U);
}

TEST(WeightUseWatching, AWeightThatOneGraphRefusedIsNotUsed) {
  const WeightUseWatch watch(options_of(-1));
  for (const auto& [severity, line] : {std::pair{1, used_line("w")}, {2, refused_line("w")}, {1, used_line("v")}}) {
    LogRecord record = record_of(watch, severity, line);
    pass_on(record);
  }
  EXPECT_EQ(watch.use().used, 1U);
  EXPECT_EQ(watch.use().refused, Names{"w"});
}

TEST(WeightUseWatching, KeepsWhatTheUserAskedFor) {
  for (int severity = 0; severity <= 4; ++severity) {
    const WeightUseWatch watch(options_of(severity, "name"));
    for (int written = 0; written <= 4; ++written) {
      LogRecord record = record_of(watch, written, "some words");
      EXPECT_EQ(pass_on(record), written >= severity);
    }
    LogRecord refused = record_of(watch, 2, refused_line("w"));
    EXPECT_EQ(pass_on(refused), severity <= 1);
  }
  const WeightUseWatch by_default(options_of(-1));
  LogRecord info = record_of(by_default, 1, "some words");
  LogRecord warning = record_of(by_default, 2, "some words");
  EXPECT_FALSE(pass_on(info));
  EXPECT_TRUE(pass_on(warning));
}

TEST(WeightUseWatching, GivesLoggersTheirNamesBack) {
  const WeightUseWatch named(options_of(0, "name"));
  const WeightUseWatch unnamed(options_of(0));
  const auto name_after = [](const WeightUseWatch& watch, const std::string& after) {
    LogRecord record = record_of(watch, 2, "of " + watch.logid() + ", twice " + watch.logid() + after, after);
    EXPECT_TRUE(pass_on(record));
    EXPECT_EQ(record.message.find('\x1f'), std::string::npos) << record.message;
    return record.logger;
  };
  EXPECT_EQ(name_after(named, ""), "name");
  EXPECT_EQ(name_after(named, ":tag"), "name:tag");
  EXPECT_EQ(name_after(unnamed, ""), "");
  EXPECT_EQ(name_after(unnamed, ":tag"), "tag");
  EXPECT_EQ(name_after(unnamed, "::tag"), ":tag");
  EXPECT_EQ(name_after(named, ":ghij"), "name:ghij");
}

TEST(WeightUseWatching, LeavesOtherRecordsAsTheyAre) {
  for (const std::string& logger :
       {std::string("InferenceSession"), std::string(), std::string("\x1f"), std::string("\x1e\x1f"),
        std::string("\x1f\x1e"), std::string("\x1f\x1e") + "1", std::string("\x1f\x1e") + "gg", std::string(1, '\0')}) {
    LogRecord record{0, "onnxruntime", logger, "", used_line("w")};
    EXPECT_TRUE(pass_on(record));
    EXPECT_EQ(record.logger, logger);
    EXPECT_EQ(record.message, used_line("w"));
  }
}

TEST(WeightUseWatching, EndsWithTheWatchWhileRecordsGoOn) {
  const SessionOptions options = options_of(1, "name");
  auto watch = std::make_unique<WeightUseWatch>(options);
  LogRecord record = record_of(*watch, 1, used_line("w"), ":tag");
  watch.reset();
  EXPECT_TRUE(pass_on(record));
  EXPECT_EQ(record.logger, "name:tag");
}

TEST(WeightUseWatching, TakesRecordsOfManyThreadsAndForks) {
  std::atomic<bool> stop{false};
  in_threads(5, [&](int i) {
    for (int forks = 0; i == 0 && forks < 20; ++forks) {
      EXPECT_TRUE(in_forked_child([] {
        const WeightUseWatch watch(options_of(-1));
        LogRecord record = record_of(watch, 1, used_line("w"));
        return !pass_on(record) && watch.use().used == 1;
      }));
    }
    stop = stop || i == 0;
    while (!stop) {
      const WeightUseWatch watch(options_of(-1));
      for (int weight = 0; weight < 100; ++weight) {
        LogRecord record = record_of(watch, 1, used_line(std::to_string(weight)));
        EXPECT_FALSE(pass_on(record));
      }
      EXPECT_EQ(watch.use().used, 100);
    }
  });
}

}  // namespace
}  // namespace ortmulti::tests
