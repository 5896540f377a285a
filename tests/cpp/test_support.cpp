#include "test_support.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <numeric>
#include <sstream>
#include <stdexcept>
#include <thread>

namespace ortmulti::tests {
namespace {

constexpr const char* library_variable = "ORTMULTI_ONNXRUNTIME_LIBRARY";
constexpr const char* models_variable = "ORTMULTI_TEST_MODELS";

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// Whether a thread is past its last instruction: who joins it may go on before the kernel lists it no more. The flags
// are the ninth field; the name before them, in parentheses, may hold anything.
bool is_ending(const std::filesystem::path& task) {
  std::ifstream file(task / "stat");
  std::string line;
  if (!std::getline(file, line)) {
    return true;  // it ended meanwhile
  }
  constexpr int fields_before_flags = 6;
  constexpr std::uint64_t pf_exiting = 4;  // linux/sched.h
  std::istringstream fields(line.substr(line.rfind(')') + 1));
  std::string skipped;
  for (int field = 0; field < fields_before_flags; ++field) {
    fields >> skipped;
  }
  std::uint64_t flags = 0;
  fields >> flags;
  return (flags & pf_exiting) != 0;
}

// Far longer than any child needs: it ends a hang, it measures nothing. AddressSanitizer's allocator, unlike the C
// library's, does not take its locks over a fork (GCC 12): a child in which another thread's is left locked hangs for
// that alone, so it is tried again there.
#ifdef __SANITIZE_ADDRESS__
constexpr unsigned hang_seconds = 20;
constexpr int attempts = 5;
#else
constexpr unsigned hang_seconds = 120;
constexpr int attempts = 1;
#endif

// The status of a forked child that returns 0 where `call` returns true; -1 where there is no child.
int status_of_child(const std::function<bool()>& call) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(hang_seconds);
    bool good = false;
    try {
      good = call();
    } catch (const std::exception& error) {
      std::cerr << "in the child: " << error.what() << '\n';
    }
    _exit(good ? 0 : 1);
  }
  int status = -1;
  return child > 0 && waitpid(child, &status, 0) == child ? status : -1;
}

}  // namespace

TemporaryFolder::TemporaryFolder() {
  std::string name = (std::filesystem::temp_directory_path() / "ortmulti-XXXXXX").string();
  if (mkdtemp(name.data()) == nullptr) {
    throw std::runtime_error("cannot make a temporary folder");
  }
  path_ = name;
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

std::string TemporaryFolder::write(const std::string& name, const std::string& text) const {
  const std::filesystem::path path = *this / name;
  std::filesystem::create_directories(path.parent_path());
  std::ofstream(path, std::ios::binary) << text;
  return path.string();
}

void write_anew(const std::string& path, const std::string& text) {
  struct stat before{};
  struct stat after{};
  stat(path.c_str(), &before);
  do {  // a file system's clock is coarse
    std::fstream(path, std::ios::binary | std::ios::in | std::ios::out) << text;
    const timespec times[] = {before.st_atim, before.st_mtim};
    utimensat(AT_FDCWD, path.c_str(), times, 0);
    stat(path.c_str(), &after);
  } while (after.st_ctim.tv_sec == before.st_ctim.tv_sec && after.st_ctim.tv_nsec == before.st_ctim.tv_nsec);
}

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

testing::AssertionResult throws(ErrorKind kind, std::initializer_list<const char*> words,
                                const std::function<void()>& call) {
  ErrorKind found = kind;
  std::string text;
  const auto result = throws(words, [&] {
    try {
      call();
    } catch (const Error& error) {
      found = error.kind();
      text = error.what();
      throw;
    }
  });
  return found == kind ? result
                       : testing::AssertionFailure() << "kind " << static_cast<int>(found) << " instead of "
                                                     << static_cast<int>(kind) << ": " << text;
}

testing::AssertionResult throws(std::initializer_list<const char*> words, const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    const std::string text = error.what();
    for (const char* word : words) {
      if (text.find(word) == std::string::npos) {
        return testing::AssertionFailure() << "'" << word << "' is not in: " << text;
      }
    }
    return testing::AssertionSuccess();
  }
  return testing::AssertionFailure() << "nothing was thrown";
}

void in_threads(int count, const std::function<void(int)>& call) {
  std::vector<std::future<void>> threads;
  threads.reserve(static_cast<std::size_t>(count));
  for (int i = 0; i < count; ++i) {
    threads.push_back(std::async(std::launch::async, call, i));
  }
  for (auto& thread : threads) {
    thread.get();
  }
}

testing::AssertionResult in_forked_child(const std::function<bool()>& call) {
  int status = -1;
  bool hung = true;
  for (int attempt = 0; hung && attempt < attempts; ++attempt) {
    status = status_of_child(call);
    hung = status != -1 && WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM;
  }
  if (status == 0) {
    return testing::AssertionSuccess();
  }
  if (status == -1) {
    return testing::AssertionFailure() << "no child could be forked or waited for";
  }
  if (hung) {
    return testing::AssertionFailure() << "the child hung";
  }
  return WIFSIGNALED(status) ? testing::AssertionFailure() << "the child was ended by signal " << WTERMSIG(status)
                             : testing::AssertionFailure() << "the child returned " << WEXITSTATUS(status);
}

void expect_in_own_process(const std::function<bool()>& call) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(_exit(call() ? 0 : 1), testing::ExitedWithCode(0), "");
}

std::string missing_environment() {
  for (const char* name : {library_variable, models_variable}) {
    if (variable(name).empty()) {
      return std::string(name) + " is not set";
    }
  }
  return "";
}

OnnxRuntime& runtime() { return OnnxRuntime::open(variable(library_variable)); }

std::string model_path(const std::string& name) { return variable(models_variable) + "/" + name + ".onnx"; }

ModelSource model(const std::string& name) { return {model_path(name)}; }

ModelSource model_of(const std::shared_ptr<const std::string>& bytes) {
  return {"", {bytes, reinterpret_cast<const unsigned char*>(bytes->data())}, bytes->size()};
}

std::shared_ptr<Session> make_session(const std::string& model_name, const SessionOptions& options) {
  return std::make_shared<Session>(runtime(), model(model_name), options, std::vector<Provider>{}, nullptr);
}

SessionOptions with_threads(int count) {
  SessionOptions options;
  options.intra_op_num_threads = count;
  return options;
}

std::vector<LogRecord> take_log() {
  const auto taken = onnxruntime_log().take().items;
  return {taken.begin(), taken.end()};
}

Ort::Value tensor(const std::vector<std::int64_t>& shape, float first) {
  Ort::Value value = Ort::Value::CreateTensor<float>(Ort::AllocatorWithDefaultOptions(), shape.data(), shape.size());
  auto* data = value.GetTensorMutableData<float>();
  std::iota(data, data + value.GetTensorTypeAndShapeInfo().GetElementCount(), first);
  return value;
}

std::vector<float> numbers(const Ort::Value& value) {
  const auto* data = value.GetTensorData<float>();
  return {data, data + value.GetTensorTypeAndShapeInfo().GetElementCount()};
}

std::vector<std::int64_t> shape_of(const Ort::Value& value) { return value.GetTensorTypeAndShapeInfo().GetShape(); }

std::vector<float> run(Session& session, const std::vector<FloatTensor>& inputs, const char* output,
                       const Ort::RunOptions& options) {
  const auto memory = Ort::MemoryInfo::CreateCpu(OrtDeviceAllocator, OrtMemTypeDefault);
  RunInputs fed;
  for (const FloatTensor& input : inputs) {
    fed.add(input.name.c_str(),
            Ort::Value::CreateTensor<float>(memory, const_cast<float*>(input.values.data()), input.values.size(),
                                            input.shape.data(), input.shape.size()));
  }
  return numbers(session.run(options, fed, {output}).front());
}

std::vector<float> run_add(Session& session) { return run(session, {{"x", {10, 20, 30}, {1, 3}}}, "sum"); }

SessionOptions LongRun::options() {
  SessionOptions options = with_threads(1);
  options.log_severity_level = 1;
  options.enable_cpu_mem_arena = false;  // its lock may be taken at the moment of a fork
  options.enable_mem_pattern = false;
  return options;
}

LongRun::LongRun(const std::shared_ptr<Session>& session) {
  options_.SetRunTag("counting");
  take_log();
  running_ = std::async(std::launch::async, [this, session] {
    std::int64_t n = std::int64_t{1} << 60;
    const auto memory = Ort::MemoryInfo::CreateCpu(OrtDeviceAllocator, OrtMemTypeDefault);
    RunInputs inputs;
    inputs.add("n", Ort::Value::CreateTensor<std::int64_t>(memory, &n, 1, nullptr, 0));
    session->run(options_, inputs, {"total"});
  });
  // ONNX Runtime says so when it begins.
  for (bool begun = false; !begun;) {
    onnxruntime_log().wait(std::chrono::minutes(1));
    const auto records = take_log();
    EXPECT_FALSE(records.empty()) << "the run has not begun";
    begun = records.empty() || std::ranges::any_of(records, [](const LogRecord& record) {
              return record.message.find("counting") != std::string::npos;
            });
  }
}

void LongRun::stop() {
  options_.SetTerminate();
  EXPECT_THROW(running_.get(), Error);
}

std::size_t thread_count() {
  // ThreadSanitizer has a thread of its own from the first that is started on.
  static const bool started = [] {
    std::thread([] {}).join();
    return true;
  }();
  static_cast<void>(started);
  const std::filesystem::directory_iterator tasks("/proc/self/task");
  return static_cast<std::size_t>(
      std::count_if(begin(tasks), end(tasks), [](const auto& task) { return !is_ending(task.path()); }));
}

bool threads_become(std::size_t count) {
  const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (thread_count() > count) {
    if (std::chrono::steady_clock::now() > limit) {
      return false;
    }
    std::this_thread::yield();
  }
  return true;
}

}  // namespace ortmulti::tests
