#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/cuda/driver.hpp"

namespace ortmulti::tests {

/// A CUDA driver in host memory. Its functions are plain ones, as the real driver's, so its state is the process's.
/// Copies are made by a thread for each stream, some time after they were asked for: what is not waited for is a wrong
/// byte. Device addresses cannot be read or written by the host; use `read`.
struct FakeCuda {
  int devices = 2;
  std::map<std::string, CUresult> failing;  ///< Function ("cuInit") and what it returns.
  struct Failure {
    int call;  ///< From 1.
    CUresult result;
  };
  std::map<std::string, Failure> failing_call;  ///< As `failing`, for one call alone.
  /// Whether another library captures a stream in CUDA's default mode: what a thread of the same mode asks fails.
  std::atomic<bool> captured_by_others{false};
  std::atomic<int> failed_beside_captures{0};
  bool peers = true;
  bool stable_addresses = true;               ///< Whether the devices have memory that is mapped to reserved addresses.
  bool shareable = true;                      ///< Whether processes can share that memory.
  std::set<std::pair<int, int>> unreachable;  ///< Device and peer between which there is no access.
  std::set<std::pair<int, int>> refused_peers;  ///< Device and peer for which enabling it fails after all.
  std::map<int, std::size_t> memory_limit;      ///< Bytes that a device has free; free_memory() where it is not set.

  /// Called at the start of each driver function, in the caller's thread and outside all locks.
  std::function<void(const char* function)> on_call;
  /// Called in the driver before a context is created.
  std::function<void(int device)> on_context;

  struct Copy {
    enum class Kind { to_device, to_host, peer };
    Kind kind;
    int device;  ///< The stream's.
    std::size_t bytes;
    int number;  ///< From 0, in the order in which copies were asked for.
  };
  /// Called in a stream's thread before it copies: may wait, and may fail the copy, which leaves the device unusable.
  std::function<CUresult(const Copy&)> on_copy;

  std::atomic<int> init_calls{0};
  std::atomic<bool> overlapped{false};  ///< Whether two calls that create something ran at the same time.
  std::atomic<int> pageable_copies{0};  ///< Copies from or to host memory that is not registered (for that context).
  std::atomic<int> indirect_copies{0};  ///< Peer copies without peer access.
  std::mutex mutex;
  std::vector<int> contexts;         ///< Devices in the order in which their contexts were created.
  std::map<std::string, int> calls;  ///< How often each function was called.

  FakeCuda();
  ~FakeCuda();
  FakeCuda(const FakeCuda&) = delete;
  FakeCuda& operator=(const FakeCuda&) = delete;

  static FakeCuda& state();
  /// Waits for all streams and forgets everything; the new state.
  static FakeCuda& reset();
  static CudaDriver table();

  static constexpr std::size_t total_memory(int device) { return (static_cast<std::size_t>(device) + 1) << 30U; }
  static constexpr std::size_t free_memory(int device) { return total_memory(device) / 2; }
  /// What the sizes of memory that is mapped are multiples of.
  static constexpr std::size_t granularity = 4096;
  /// The device whose context is current in the calling thread; -1 for none.
  static int current();
  /// Whether the calling thread minds other threads' captures, as threads do at first.
  static bool minds_captures();

  /// What was created and not given back.
  struct Live {
    std::size_t allocations = 0;  ///< With memory to be mapped, which lives until it is neither mapped nor held.
    std::size_t registrations = 0;
    std::size_t streams = 0;
    std::size_t events = 0;
    std::size_t addresses = 0;  ///< That are reserved.
    bool nothing() const { return allocations + registrations + streams + events + addresses == 0; }
  };
  Live live() const;
  std::size_t peak_registered() const;  ///< The most bytes of host memory that were registered at the same time.
  std::size_t allocated(int device) const;
  std::size_t free_bytes(int device) const;
  /// Makes devices usable again on which a copy failed.
  void repair() const;
  /// Waits until the threads of destroyed streams have ended; work that was left to them is done first.
  void settle() const;
  /// As `settle`, for all streams.
  void end_streams() const;
  /// What no driver promises to survive: memory given back under a copy, an address that is none, and the like.
  std::vector<std::string> misuses() const;
  /// A live allocation's bytes, once all streams were waited for by the caller; empty for any other address.
  std::string read(CUdeviceptr address, std::size_t size) const;

  struct Work;
  std::unique_ptr<Work> work;
};

/// Counts the call and says what it is to return. For the driver's functions alone.
CUresult result_of(const char* function);
/// Puts memory, streams, events and peer access into the table.
void add_work(CudaDriver& driver);
/// The device of a context, which may be null: -1.
int device_of(CUcontext context);

}  // namespace ortmulti::tests
