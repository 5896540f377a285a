#include "core/cuda/copies.hpp"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <exception>
#include <memory>
#include <mutex>

#include "core/base/async_runs.hpp"
#include "core/base/cpu_affinity.hpp"
#include "core/base/device.hpp"
#include "core/base/error.hpp"

namespace ortmulti {
namespace {

constexpr int most = 3;  // with whoever asks four, beyond which the memory is what limits a copy

AsyncRuns& helping_threads() {
  static auto& threads = *new AsyncRuns();  // NOLINT(cppcoreguidelines-owning-memory): needed up to exit
  return threads;
}

struct CopyJob {
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

}  // namespace

int max_copy_helpers() {
  static const int count = std::min(most, usable_cores() - 1);
  return count;
}

void share_copy(int helpers, const std::function<void(int)>& part) {
  const auto job = std::make_shared<CopyJob>();
  job->part = &part;
  try {
    for (int i = 0; i < helpers; ++i) {
      helping_threads().push([job](bool /*cancelled*/) { job->help(); }, static_cast<std::size_t>(max_copy_helpers()));
    }
  } catch (const Error&) {  // NOLINT(bugprone-empty-catch): without a thread this one does it all
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

StagedCopies::StagedCopies(CudaStartup& startup, int device)
    : startup_(startup),
      device_(device),
      driver_(startup.driver()),
      buffers_(chunk, 2 * parts),
      done_(startup, device),
      stream_(startup, device) {
  buffers_.pin(startup, to_string(Device::cuda(device)));
  for (int i = 0; i < 2 * parts; ++i) {
    copied_.emplace_back(startup, device);
  }
}

void StagedCopies::check(CUresult result) const {
  if (result != CUDA_SUCCESS) {
    startup_.check(result, "copying a request's inputs and outputs on " + to_string(Device::cuda(device_)));
  }
}

// Which bytes have been taken by one of the threads that copy them.
struct StagedCopies::Transfer {
  const unsigned char* source = nullptr;
  unsigned char* target = nullptr;
  std::size_t bytes = 0;
  std::atomic<std::size_t> taken{0};

  struct Piece {
    std::size_t at = 0;
    std::size_t size = 0;
  };
  Piece next() {
    const std::size_t at = taken.fetch_add(chunk);
    return {at, at < bytes ? std::min(chunk, bytes - at) : 0};
  }
};

void StagedCopies::share(std::size_t bytes, const std::function<void(int)>& part) {
  const int helpers = bytes < copy_shared_from ? 0 : std::min(max_copy_helpers(), parts - 1);
  if (helpers < 1) {
    part(0);
    return;
  }
  CUcontext context = startup_.context(device_);
  share_copy(helpers, [&](int number) {
    check(driver_.ctx_set_current(context));
    part(number);
  });
}

void StagedCopies::from_host(void* target, const void* source, std::size_t bytes) {
  Transfer transfer{static_cast<const unsigned char*>(source), static_cast<unsigned char*>(target), bytes};
  share(bytes, [&](int part) { send(transfer, part); });
}

void StagedCopies::from_pinned(void* target, const void* source, std::size_t bytes) {
  check(driver_.memcpy_htod_async(to_address(target), source, bytes, stream_.get()));
}

void StagedCopies::to_host(void* target, const void* source, std::size_t bytes) {
  Transfer transfer{static_cast<const unsigned char*>(source), static_cast<unsigned char*>(target), bytes};
  share(bytes, [&](int part) { fetch(transfer, part); });
}

void StagedCopies::send(Transfer& transfer, int part) {
  int index = 2 * part;
  for (auto piece = transfer.next(); piece.size != 0; piece = transfer.next(), index ^= 1) {
    const CudaEvent& copied = copied_.at(static_cast<std::size_t>(index));
    check(copied.wait());
    std::memcpy(buffers_[index], transfer.source + piece.at, piece.size);
    check(
        driver_.memcpy_htod_async(to_address(transfer.target) + piece.at, buffers_[index], piece.size, stream_.get()));
    check(driver_.event_record(copied.get(), stream_.get()));
  }
}

void StagedCopies::fetch(Transfer& transfer, int part) {
  const auto take = [&](const Transfer::Piece& piece, int index) {
    check(copied_.at(static_cast<std::size_t>(index)).wait());
    std::memcpy(transfer.target + piece.at, buffers_[index], piece.size);
  };
  int index = 2 * part;
  Transfer::Piece before;
  // All copies are on one stream, so that a buffer is written to only after what was sent from it before.
  for (auto piece = transfer.next(); piece.size != 0; piece = transfer.next(), index ^= 1) {
    check(
        driver_.memcpy_dtoh_async(buffers_[index], to_address(transfer.source) + piece.at, piece.size, stream_.get()));
    check(driver_.event_record(copied_.at(static_cast<std::size_t>(index)).get(), stream_.get()));
    if (before.size != 0) {
      take(before, index ^ 1);
    }
    before = piece;
  }
  if (before.size != 0) {
    take(before, index ^ 1);
  }
}

void StagedCopies::from_device(void* target, int source_device, const void* source, std::size_t bytes) {
  CUcontext here = startup_.context(device_);
  CUcontext there = startup_.context(source_device);
  check(driver_.memcpy_peer_async(to_address(target), here, to_address(source), there, bytes, stream_.get()));
}

void StagedCopies::settle() noexcept {
  if (driver_.event_record(done_.get(), stream_.get()) == CUDA_SUCCESS) {
    static_cast<void>(done_.wait());
  }
}

void StagedCopies::wait() {
  check(driver_.event_record(done_.get(), stream_.get()));
  check(done_.wait());
}

}  // namespace ortmulti
