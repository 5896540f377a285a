#pragma once

#include <algorithm>
#include <condition_variable>
#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/base/error.hpp"
#include "core/pool/pool.hpp"
#include "test_support.hpp"

namespace ortmulti::tests {

/// Stands for a session: a run ends when the test says so, or at once.
class FakeRunner : public Runner {
 public:
  /// `session`: what the runner shares with others; itself if null.
  explicit FakeRunner(Device device, const void* session = nullptr)
      : device_(device), session_(session == nullptr ? this : session) {}

  const Device& device() const noexcept override { return device_; }
  const void* session() const noexcept override { return session_; }

  void run(Request& request) override {
    std::unique_lock lock(mutex_);
    runs_.push_back(&request);
    request.outputs.clear();
    changed_.notify_all();
    changed_.wait(lock, [&] { return !held_ || terminated_ == &request; });
    if (terminated_ == &request) {
      terminated_ = nullptr;
      throw Error(ErrorKind::fail, "terminated");
    }
    if (action) {
      const auto call = action;
      lock.unlock();
      call(request);
    }
    if (request.outputs.empty()) {
      request.outputs.emplace_back(nullptr);
    }
  }

  bool drop_graphs() override { return dropping_graphs && dropping_graphs(); }
  std::optional<Session::Arena> arena() noexcept override { return arena_now; }
  Weights weights() noexcept override { return {this, weights_now}; }
  void shrink_arena(Session::Shrink when) override {
    in_next_run = when == Session::Shrink::in_next_run;
    ++shrunk;
    if (shrinking) {
      shrinking();
    }
  }
  void free_buffers() override { ++freed; }
  using Runner::note_run;
  using Runner::note_session_run;

  void terminate(Request& request) noexcept override {
    const std::lock_guard lock(mutex_);
    terminated_ = &request;
    changed_.notify_all();
  }

  std::string why_broken() noexcept override {
    const std::lock_guard lock(mutex_);
    return broken_;
  }

  void hold() { set(held_, true); }
  void release() { set(held_, false); }
  void break_down(const std::string& reason) { set(broken_, reason); }
  void wait_for_runs(std::size_t count) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return runs_.size() >= count; });
  }
  std::vector<Request*> runs() {
    const std::lock_guard lock(mutex_);
    return runs_;
  }

  std::function<bool()> dropping_graphs;  ///< Set before it is added, as the next one.
  std::function<void()> shrinking;
  std::optional<Session::Arena> arena_now;
  std::atomic<std::uint64_t> weights_now{0};  ///< Bytes.
  std::atomic<int> shrunk{0};
  std::atomic<bool> in_next_run{false};  ///< The last time.
  std::atomic<int> freed{0};
  std::function<void(Request&)> action;  ///< Of each run: may throw, or give outputs. Set before there are any.

 private:
  template <typename Value>
  void set(Value& value, Value to) {
    const std::lock_guard lock(mutex_);
    value = std::move(to);
    changed_.notify_all();
  }

  const Device device_;
  const void* session_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool held_ = false;
  std::string broken_;
  Request* terminated_ = nullptr;
  std::vector<Request*> runs_;
};

/// Calls a function with each finished request.
class Calls : public Receiver {
 public:
  explicit Calls(std::function<void(const std::shared_ptr<Request>&)> call) : call_(std::move(call)) {}
  void receive(Requests finished) noexcept override { std::for_each(finished.begin(), finished.end(), call_); }

 private:
  std::function<void(const std::shared_ptr<Request>&)> call_;
};

/// Collects what is finished.
class Answers {
 public:
  std::shared_ptr<Request> request() {
    auto made = std::make_shared<Request>();
    made->receiver = std::make_shared<Calls>([this](const std::shared_ptr<Request>& finished) {
      const std::lock_guard lock(mutex_);
      finished_.push_back(finished);
      changed_.notify_all();
    });
    return made;
  }

  std::vector<std::shared_ptr<Request>> wait_for(std::size_t count) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return finished_.size() >= count; });
    return finished_;
  }

  std::size_t count() {
    const std::lock_guard lock(mutex_);
    return finished_.size();
  }
  void clear() {
    const std::lock_guard lock(mutex_);
    finished_.clear();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::shared_ptr<Request>> finished_;
};

/// The kind of the error that a request ended with.
inline ErrorKind kind_of(const Request& request) {
  try {
    std::rethrow_exception(request.error);
  } catch (const Error& error) {
    return error.kind();
  }
}

inline std::string text_of(const Request& request) {
  try {
    std::rethrow_exception(request.error);
  } catch (const std::exception& error) {
    return error.what();
  }
}

/// A pool of such runners. Values and options are ONNX Runtime's.
class PoolWithFakes : public RealSessions {
 protected:
  void TearDown() override {  // while what the pool's threads use is there
    for (const auto& added : runners_) {
      if (const auto runner = added.lock()) {
        runner->release();
      }
    }
    pool->close(true);
  }

  std::shared_ptr<FakeRunner> add(const Device& device, const void* session = nullptr) {
    auto runner = std::make_shared<FakeRunner>(device, session);
    runners_.push_back(runner);
    pool->add({runner});
    return runner;
  }
  /// A request whose run can be ended and tried on another device.
  std::shared_ptr<Request> request(const std::optional<Device>& device = {}) {
    auto made = answers.request();
    made->device = device;
    made->own_run_options.emplace();
    made->run_options = &*made->own_run_options;
    return made;
  }
  std::shared_ptr<Request> submit(const std::shared_ptr<Request>& made) {
    EXPECT_TRUE(pool->submit(made, std::nullopt));
    return made;
  }
  std::shared_ptr<Request> submit(const std::optional<Device>& device = {}) { return submit(request(device)); }
  /// Has a run last until the runner is released; its request.
  std::shared_ptr<Request> keep_busy(const std::shared_ptr<FakeRunner>& runner) {
    const std::size_t before = runner->runs().size();
    runner->hold();
    auto running = submit(runner->device());
    runner->wait_for_runs(before + 1);
    return running;
  }
  /// Has a run last until the runner is released, and a request for any device wait, which is returned.
  std::shared_ptr<Request> wait_behind(const std::shared_ptr<FakeRunner>& runner) {
    keep_busy(runner);
    return submit();
  }
  /// A runner whose next run fails and breaks its device.
  static void break_down(FakeRunner& runner, const std::string& why = "gone") {
    runner.action = [](Request&) { throw Error(ErrorKind::fail, "lost"); };
    runner.break_down(why);
  }
  DeviceStats stats_of(const Device& device) const {
    for (DeviceStats& stats : pool->stats().devices) {
      if (stats.device == device) {
        return stats;
      }
    }
    return {};
  }

  Answers answers;
  std::shared_ptr<Pool> pool = Pool::make({});

 private:
  std::vector<std::weak_ptr<FakeRunner>> runners_;
};

}  // namespace ortmulti::tests
