#include "core/session_factory.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <string_view>
#include <system_error>
#include <utility>

#include "core/cores.hpp"
#include "core/cuda_startup.hpp"
#include "core/error.hpp"
#include "core/mapped_file.hpp"
#include "core/onnx_index.hpp"
#include "core/process_fork.hpp"

namespace ortmulti {
namespace {

struct Cancelled {
  std::mutex mutex;
  std::vector<std::thread> threads;
};

std::atomic<Cancelled*> cancelled_creations{nullptr};

// Replaced in a forked child, which has none of these threads.
void new_cancelled() { cancelled_creations.store(new Cancelled()); }  // NOLINT(cppcoreguidelines-owning-memory)

Cancelled& cancelled_threads() {
  static const bool watched = [] {
    new_cancelled();
    on_fork_in_child(new_cancelled);
    return true;
  }();
  static_cast<void>(watched);
  return *cancelled_creations.load();
}

}  // namespace

bool concurrent_creation_stressed(const std::string& onnxruntime_version) {
  // See docs/concurrent-creation.md for how.
  constexpr std::array<std::string_view, 2> stressed = {"1.30.0", "1.31.1"};
  return std::find(stressed.begin(), stressed.end(), onnxruntime_version) != stressed.end();
}

Creation::Creation(OnnxRuntime& runtime, CreationRequest request)
    : runtime_(runtime),
      request_(std::move(request)),
      sessions_(request_.sessions.size()),
      errors_(request_.sessions.size()) {
  for (const auto& providers : request_.sessions) {
    devices_.push_back(device_of(providers));
    turns_[to_string(devices_.back())];
    memory_checks_[to_string(devices_.back())];
  }
  turns_["all"];
}

// The last reference may be that of one of its own threads, which cannot join itself.
Creation::~Creation() {
  if (!threads_.empty()) {
    leave_threads();
  }
}

std::shared_ptr<Creation> Creation::start(OnnxRuntime& runtime, CreationRequest request) {
  auto creation = std::make_shared<Creation>(runtime, std::move(request));
  try {
    for (std::size_t i = 0; i < creation->size(); ++i) {
      creation->threads_.emplace_back([creation, i] { creation->create(i); });
    }
  } catch (const std::system_error& error) {
    const std::size_t started = creation->threads_.size();
    creation->cancel();
    throw Error(ErrorKind::runtime_exception, "cannot start a thread for each of " + std::to_string(creation->size()) +
                                                  " sessions: the system allowed " + std::to_string(started) + " (" +
                                                  error.what() + ")");
  }
  return creation;
}

std::mutex* Creation::turn(const Device& device) {
  switch (request_.serialize) {
    case Serialize::none:
      return nullptr;
    case Serialize::device:
      return &turns_.at(to_string(device));
    case Serialize::all:
      return &turns_.at("all");
    case Serialize::automatic:
      break;
  }
  const bool free = !device.is_cuda() || concurrent_creation_stressed(runtime_.version());
  return free ? nullptr : &turns_.at(to_string(device));
}

SessionOptions Creation::options_for(const Device& device) const {
  SessionOptions options = request_.options;
  if (device.is_cuda()) {
    // The GPU computes; pools of idle CPU threads would only cost memory and start-up.
    if (options.intra_op_num_threads == 0) {
      options.intra_op_num_threads = 1;
    }
    if (options.inter_op_num_threads == 0) {
      options.inter_op_num_threads = 1;
    }
  } else if (options.intra_op_num_threads == 0) {
    const auto beside = std::count(devices_.begin(), devices_.end(), Device::cpu());
    options.intra_op_num_threads = threads_per_session(static_cast<int>(beside));
  }
  return options;
}

std::uint64_t Creation::weight_bytes() {
  std::call_once(weighing_, [this] {
    const ScopedSpan span(timeline_.get(), "index model");
    try {
      const ModelSource& model = request_.model;
      if (model.in_memory) {
        weight_bytes_ =
            total_bytes(index_model(static_cast<const unsigned char*>(model.bytes), model.size).initializers);
      } else {
        const MappedFile file(model.path);
        weight_bytes_ = total_bytes(index_model(file.data(), file.size()).initializers);
      }
    } catch (const Error&) {  // NOLINT(bugprone-empty-catch): ONNX Runtime says what is wrong with the model
    }
  });
  return weight_bytes_;
}

void Creation::check_memory(const Device& device) {
  CudaStartup& startup = CudaStartup::instance();
  startup.make_current(device.index, timeline_.get());
  const CudaStartup::Memory memory = startup.memory(device.index);
  const auto sessions = static_cast<std::uint64_t>(std::count(devices_.begin(), devices_.end(), device));
  const std::uint64_t each = weight_bytes();
  if (each <= memory.free / sessions) {
    return;
  }
  const auto megabytes = [](std::uint64_t bytes) { return std::to_string(bytes / 1'000'000) + " MB"; };
  throw Error(ErrorKind::out_of_memory, "the weights of " + request_.model.describe() + " take " + megabytes(each) +
                                            " in each of " + std::to_string(sessions) + " sessions on " +
                                            to_string(device) + ", which has " + megabytes(memory.free) + " free of " +
                                            megabytes(memory.total));
}

void Creation::create(std::size_t index) {
  std::shared_ptr<Session> session;
  std::exception_ptr error;
  try {
    const Device& device = devices_[index];
    const std::string name = to_string(device);
    std::unique_lock<std::mutex> my_turn;
    if (std::mutex* lock = turn(device); lock != nullptr) {
      const ScopedSpan span(timeline_.get(), "wait for turn", name);
      my_turn = std::unique_lock(*lock);
    }
    bool begin = false;
    {
      const std::lock_guard lock(mutex_);
      begin = !stopped_;
    }
    if (begin) {
      if (device.is_cuda()) {
        std::call_once(memory_checks_.at(name), [&] { check_memory(device); });
      }
      session = std::make_shared<Session>(runtime_, request_.model, options_for(device), request_.sessions[index],
                                          timeline_.get());
      register_for_shutdown(session);
    }
  } catch (...) {
    session.reset();
    error = std::current_exception();
  }
  std::unique_lock lock(mutex_);
  if (cancelled_ && session) {
    lock.unlock();
    session->close();
    session.reset();
    lock.lock();
  }
  stopped_ = stopped_ || error;
  errors_[index] = error;
  if (session) {
    newly_ready_.push_back(index);
  }
  sessions_[index] = std::move(session);
  ++finished_;
  progress_.notify_all();
}

std::vector<std::size_t> Creation::wait(std::chrono::milliseconds timeout) {
  std::unique_lock lock(mutex_);
  progress_.wait_for(lock, timeout, [this] { return finished_ == size() || !newly_ready_.empty(); });
  return std::exchange(newly_ready_, {});
}

bool Creation::finished() const {
  const std::lock_guard lock(mutex_);
  return finished_ == size();
}

void Creation::cancel() {
  std::vector<std::shared_ptr<Session>> ready;
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
    cancelled_ = true;
    ready.swap(sessions_);
    sessions_.resize(ready.size());
  }
  for (const auto& session : ready) {
    if (session) {
      session->close();
    }
  }
  leave_threads();
}

void Creation::leave_threads() {
  Cancelled& cancelled = cancelled_threads();
  const std::lock_guard lock(cancelled.mutex);
  for (std::thread& thread : threads_) {
    cancelled.threads.push_back(std::move(thread));
  }
  threads_.clear();
}

void Creation::join() {
  for (std::thread& thread : threads_) {
    thread.join();
  }
  threads_.clear();
}

std::vector<std::shared_ptr<Session>> Creation::take() {
  if (cancelled_) {
    throw Error(ErrorKind::closed, "the creation of sessions was cancelled");
  }
  join();
  const auto failed = std::find_if(errors_.begin(), errors_.end(), [](const auto& error) { return error != nullptr; });
  if (failed != errors_.end()) {
    for (const auto& session : std::exchange(sessions_, {})) {
      if (session) {
        session->close();
      }
    }
    std::rethrow_exception(*failed);
  }
  return std::move(sessions_);
}

void join_cancelled_creations() {
  Cancelled& cancelled = cancelled_threads();
  std::vector<std::thread> threads;
  {
    const std::lock_guard lock(cancelled.mutex);
    threads.swap(cancelled.threads);
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
}

}  // namespace ortmulti
