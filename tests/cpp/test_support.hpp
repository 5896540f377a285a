#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <future>
#include <initializer_list>
#include <memory>
#include <string>
#include <vector>

#include "core/base/error.hpp"
#include "core/base/log_queue.hpp"
#include "core/ort/session.hpp"

namespace ortmulti::tests {

/// A folder of its own, removed with everything in it.
class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  const std::string& path() const noexcept { return path_; }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }
  /// Writes a file, and the folders above it that are not there.
  std::string write(const std::string& name, const std::string& text) const;

 private:
  std::string path_;
};

/// Writes over the beginning of a file, which keeps its size, inode and time of modification.
void write_anew(const std::string& path, const std::string& text);
std::string read_file(const std::string& path);

/// Whether `call` throws an Error of this kind whose message has all of `words`.
testing::AssertionResult throws(ErrorKind kind, std::initializer_list<const char*> words,
                                const std::function<void()>& call);

/// The same for an Error of any kind.
testing::AssertionResult throws(std::initializer_list<const char*> words, const std::function<void()>& call);

/// Calls `call` in `count` threads at once, each with its number from 0; returns when all have ended.
void in_threads(int count, const std::function<void(int)>& call);

/// How often a test plays with other random choices: as many times as a minute has room for, where threads wait for a
/// core in each yield, but at least every twentieth of them.
class Rounds {
 public:
  explicit Rounds(int most) : most_(most), end_(std::chrono::steady_clock::now() + std::chrono::minutes(1)) {}
  bool have(int number) const {
    return number < most_ && (number < most_ / 20 || std::chrono::steady_clock::now() < end_);
  }

 private:
  int most_;
  std::chrono::steady_clock::time_point end_;
};

/// Whether `call` returns true in a forked child; a child that hangs is killed and counts as false.
testing::AssertionResult in_forked_child(const std::function<bool()>& call);

/// Expects that `call` returns true in a process that has run the test up to here, and no other test.
void expect_in_own_process(const std::function<bool()>& call);

/// Why the tests of real sessions cannot run here; empty where they can.
std::string missing_environment();
OnnxRuntime& runtime();
std::string model_path(const std::string& name);
ModelSource model(const std::string& name);
/// A model of these bytes, which it holds.
ModelSource model_of(const std::shared_ptr<const std::string>& bytes);

std::shared_ptr<Session> make_session(const std::string& model_name, const SessionOptions& options = {});
/// Options of a session whose nodes run in `count` threads, of which the caller is one.
SessionOptions with_threads(int count);
/// What ONNX Runtime has logged since the last call.
std::vector<LogRecord> take_log();

/// A tensor of float with the values `first`, `first` + 1, ...
Ort::Value tensor(const std::vector<std::int64_t>& shape, float first = 0);
std::vector<float> numbers(const Ort::Value& value);
std::vector<std::int64_t> shape_of(const Ort::Value& value);

struct FloatTensor {
  std::string name;
  std::vector<float> values;
  std::vector<std::int64_t> shape;
};

/// Runs for one float output.
std::vector<float> run(Session& session, const std::vector<FloatTensor>& inputs, const char* output,
                       const Ort::RunOptions& options = Ort::RunOptions{nullptr});

/// {11, 22, 33} of the model "add", which adds {1, 2, 3} to {10, 20, 30}.
std::vector<float> run_add(Session& session);
inline std::vector<float> sum_of_add() { return {11, 22, 33}; }

/// Runs the model "count" in a thread of its own, until stop().
class LongRun {
 public:
  /// Returns when the run has begun. The session logs from severity 1 on, which tells it.
  explicit LongRun(const std::shared_ptr<Session>& session);
  static SessionOptions options();
  void stop();

 private:
  Ort::RunOptions options_;
  std::future<void> running_;
};

/// Threads of this process, with those that come with the first and without those that have ended or are just ending.
std::size_t thread_count();
/// Whether as many threads as `count` are left, or fewer, after a wait for those that nobody joins.
bool threads_become(std::size_t count);

/// Tests with models: skipped where there is no ONNX Runtime or no models. The library is not opened.
class WithModels : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string missing = missing_environment(); !missing.empty()) {
      GTEST_SKIP() << missing;
    }
  }
};

/// Tests of real sessions.
class RealSessions : public WithModels {
 protected:
  void SetUp() override {
    WithModels::SetUp();
    if (!IsSkipped()) {
      runtime();
    }
  }
};

}  // namespace ortmulti::tests
