#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "fake_cuda.hpp"

namespace ortmulti::tests {

using Lock = std::unique_lock<std::mutex>;
using Copy = FakeCuda::Copy;

inline constexpr std::align_val_t alignment{4096};  // pages, over which other memory may be mapped

// Device addresses are the host's with a bit that no host address has.
inline constexpr CUdeviceptr device_bit = static_cast<CUdeviceptr>(1) << 62U;
inline constexpr unsigned char unwritten = 0xa5;

struct FreeAligned {
  void operator()(unsigned char* memory) const { ::operator delete(memory, alignment); }
};

using HostMemory = std::unique_ptr<unsigned char, FreeAligned>;

inline HostMemory host_memory(std::size_t size) {
  return HostMemory(static_cast<unsigned char*>(::operator new(size, alignment)));
}

inline CUdeviceptr device_address(const HostMemory& memory) {
  return reinterpret_cast<CUdeviceptr>(memory.get()) | device_bit;
}

struct Allocation {
  int device;
  std::size_t size;
  HostMemory memory;
};

/// Memory that can be mapped. It lives until it is neither mapped nor held by its handle.
struct Physical {
  int device;
  std::size_t size;
  std::shared_ptr<const int> file = nullptr;  ///< Which processes share; null: memory of this process.
  bool taken = false;                         ///< It was made elsewhere, and takes nothing more.
  bool held = true;
  bool mapped = false;
};

/// A reserved address. The host's memory is behind it from then on, and what is in there is lost with each mapping.
struct Reservation {
  CUdeviceptr begin;
  std::size_t size;
  HostMemory memory;
  CUmemGenericAllocationHandle mapped = 0;
  std::set<int> access{};  ///< Devices that have it to what is mapped.
};

struct Registration {
  std::size_t size;
  int device;  ///< -1: for all contexts.
};

struct Event {
  int device;
  std::uint64_t recorded = 0;
  std::uint64_t reached = 0;
};

struct Operation {
  enum class Kind { copy, record };
  Kind kind;
  std::shared_ptr<Event> event;  ///< Of record.
  std::uint64_t generation = 0;  ///< Which record of the event.
  Copy copy{};
  unsigned char* to = nullptr;
  const unsigned char* from = nullptr;
};

struct Stream {
  int device;
  std::deque<Operation> queue;
  std::uint64_t asked = 0;
  std::uint64_t done = 0;
  bool closing = false;
  std::thread thread;
};

/// What the streams of the driver in host memory do. Its functions may be called with the mutex held alone.
struct FakeCuda::Work {
  std::mutex mutex;
  std::condition_variable changed;
  std::uint64_t next_handle = 1;
  std::map<std::uint64_t, std::shared_ptr<Stream>> streams;
  std::map<int, std::shared_ptr<Stream>> default_streams;  ///< By device; made at their first use.
  std::vector<std::shared_ptr<Stream>> destroyed;
  std::map<std::uint64_t, std::shared_ptr<Event>> events;
  std::map<CUdeviceptr, Allocation> allocations;
  std::map<CUdeviceptr, Reservation> addresses;
  std::map<CUmemGenericAllocationHandle, Physical> physical;
  /// Kept for the copies under way.
  std::vector<HostMemory> freed_too_early;
  std::map<const unsigned char*, Registration> registrations;
  std::set<std::pair<int, int>> peers;
  std::list<Operation> under_way;  ///< Copies that were asked for and not made.
  std::map<int, CUresult> broken;  ///< Devices on which a copy failed.
  std::vector<std::string> misuses;
  std::size_t registered = 0;
  std::size_t peak_registered = 0;
  int copies = 0;

  static Work& get() { return *FakeCuda::state().work; }

  /// Notes it, and returns `result`.
  CUresult misuse(CUresult result, const std::string& what);
  /// The host's address of device memory that lies in one live allocation and that the device (-1: any) may use; null
  /// otherwise.
  unsigned char* find(CUdeviceptr address, std::size_t size, int device);
  /// The reserved address that memory is mapped to of which this is a part; null for other memory.
  const Reservation* mapping_at(CUdeviceptr address) const;
  /// Whether the device can use another one's memory at this address without the host in between.
  bool reaches(int device, int owner, CUdeviceptr address) const;
  bool is_registered(const unsigned char* address, std::size_t size, int device) const;
  bool in_use(const unsigned char* begin, std::size_t size) const;
  CUresult state_of(int device) const;
  void ask(Stream& target, Operation operation);
  CUresult copy(Copy::Kind kind, CUstream where, unsigned char* to, const unsigned char* from, std::size_t bytes,
                Lock& lock);
  void wait_for(const Stream& stream, Lock& lock);
  void run(Stream& stream);  ///< The stream's thread, without the mutex.

  std::shared_ptr<Stream> begin_stream(int device);
  std::shared_ptr<Stream> stream(CUstream wanted);  ///< Without a handle: the default one of the current device.
  std::vector<std::shared_ptr<Stream>> streams_of(int device) const;  ///< With those that are ending.
  std::shared_ptr<Event> event(CUevent wanted) const;
  CUstream add(std::shared_ptr<Stream> created);
  CUevent add(std::shared_ptr<Event> created);
  std::shared_ptr<Stream> take(CUstream wanted);  ///< Null where there is none.
  std::shared_ptr<Event> take(CUevent wanted);

 private:
  void make(const Operation& operation, Lock& lock);
};

/// The functions of memory and peer access, of memory that is mapped to reserved addresses, and of streams and events.
void add_memory(CudaDriver& driver);
void add_mapped_memory(CudaDriver& driver);
void add_streams(CudaDriver& driver);

}  // namespace ortmulti::tests
