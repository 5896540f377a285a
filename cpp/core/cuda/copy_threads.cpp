#include "core/cuda/copy_threads.hpp"

#include <algorithm>
#include <exception>
#include <system_error>
#include <thread>

#include "core/base/cpu_affinity.hpp"
#include "core/base/fork.hpp"

namespace ortmulti {
namespace {

constexpr int most = 3;  // with whoever asks four, beyond which the memory is what limits a copy

}  // namespace

struct CopyHelpers::Job {
  const std::function<void(int)>* part = nullptr;
  std::mutex mutex;
  std::condition_variable left;
  bool closed = false;
  int joined = 0;
  int working = 0;
  std::exception_ptr error;

  void help() {
    std::unique_lock lock(mutex);
    if (closed) {
      return;
    }
    const int number = ++joined;
    ++working;
    lock.unlock();
    std::exception_ptr failed;
    try {
      (*part)(number);
    } catch (...) {
      failed = std::current_exception();
    }
    lock.lock();
    if (failed) {
      error = failed;
    }
    --working;
    left.notify_one();
  }

  void close() {
    std::unique_lock lock(mutex);
    closed = true;
    left.wait(lock, [this] { return working == 0; });
  }
};

CopyHelpers& CopyHelpers::instance() { return one_of_process<CopyHelpers>(); }

int CopyHelpers::count() {
  static const int count = std::min(most, usable_cores() - 1);
  return count;
}

void CopyHelpers::share(int helpers, const std::function<void(int)>& part) {
  const auto job = std::make_shared<Job>();
  job->part = &part;
  {
    const std::lock_guard lock(mutex_);
    start();
    for (int i = 0; i < std::min(helpers, serving_); ++i) {
      jobs_.push_back(job);
      offered_.notify_one();
    }
  }
  std::exception_ptr error;
  try {
    part(0);
  } catch (...) {
    error = std::current_exception();
  }
  job->close();
  if (!error) {
    error = job->error;
  }
  if (error) {
    std::rethrow_exception(error);
  }
}

void CopyHelpers::start() {
  while (serving_ < count()) {
    try {
      std::thread(&CopyHelpers::serve, this).detach();
    } catch (const std::system_error&) {
      return;  // fewer help; the next call tries again
    }
    ++serving_;
  }
}

void CopyHelpers::serve() {
  std::unique_lock lock(mutex_);
  for (;;) {
    offered_.wait(lock, [this] { return !jobs_.empty(); });
    const std::shared_ptr<Job> job = std::move(jobs_.front());
    jobs_.pop_front();
    lock.unlock();
    job->help();
    lock.lock();
  }
}

}  // namespace ortmulti
