#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <initializer_list>
#include <string>
#include <vector>

#include "core/base/error.hpp"
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

std::string read_file(const std::string& path);

/// Whether `call` throws an Error of this kind whose message has all of `words`.
testing::AssertionResult throws(ErrorKind kind, std::initializer_list<const char*> words,
                                const std::function<void()>& call);

/// Whether `call` returns true in a forked child; a child that hangs is killed and counts as false.
testing::AssertionResult in_forked_child(const std::function<bool()>& call);

/// Why the tests of real sessions cannot run here; empty where they can.
std::string missing_environment();
OnnxRuntime& runtime();
std::string model_path(const std::string& name);
ModelSource model(const std::string& name);

std::shared_ptr<Session> make_session(const std::string& model_name, const SessionOptions& options = {});

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

/// Threads of this process, with those that come with the first and without those that have ended or are just ending.
std::size_t thread_count();
/// Whether as many threads as `count` are left, or fewer, after a wait for those that nobody joins.
bool threads_become(std::size_t count);

/// Tests of real sessions: skipped where there is no ONNX Runtime or no models.
class RealSessions : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string missing = missing_environment(); !missing.empty()) {
      GTEST_SKIP() << missing;
    }
    runtime();
  }
};

}  // namespace ortmulti::tests
