#include "fake_cuda_work.hpp"

#include <algorithm>
#include <cstring>
#include <iterator>

namespace ortmulti::tests {
namespace {

template <typename Handle>
Handle handle(std::uint64_t number) {
  // NOLINTNEXTLINE(performance-no-int-to-ptr): a number that is handed out as an address
  return reinterpret_cast<Handle>(static_cast<std::uintptr_t>(number << 8U));
}

template <typename Handle>
std::uint64_t number(Handle handle) {
  return static_cast<std::uint64_t>(reinterpret_cast<std::uintptr_t>(handle)) >> 8U;
}

template <typename Handle, typename Object>
std::shared_ptr<Object> find_in(const std::map<std::uint64_t, std::shared_ptr<Object>>& all, Handle wanted) {
  const auto found = all.find(number(wanted));
  return found == all.end() ? nullptr : found->second;
}

}  // namespace

CUresult FakeCuda::Work::misuse(CUresult result, const std::string& what) {
  misuses.push_back(what);
  return result;
}

const Reservation* FakeCuda::Work::mapping_at(CUdeviceptr address) const {
  const auto after = addresses.upper_bound(address);
  if (after == addresses.begin()) {
    return nullptr;
  }
  const Reservation& reserved = std::prev(after)->second;
  return reserved.mapped != 0 && address - reserved.begin < reserved.size ? &reserved : nullptr;
}

bool FakeCuda::Work::reaches(int device, int owner, CUdeviceptr address) const {
  const Reservation* reserved = mapping_at(address);
  return reserved == nullptr ? peers.count({device, owner}) != 0 : reserved->access.count(device) != 0;
}

unsigned char* FakeCuda::Work::find(CUdeviceptr address, std::size_t size, int device) {
  if (const Reservation* reserved = mapping_at(address); reserved != nullptr) {
    const std::size_t offset = address - reserved->begin;
    const bool usable = device < 0 || reserved->access.count(device) != 0;
    return usable && size <= reserved->size - offset ? reserved->memory.get() + offset : nullptr;
  }
  auto after = allocations.upper_bound(address);
  if (after == allocations.begin()) {
    return nullptr;
  }
  const auto& [begin, allocation] = *--after;
  const std::size_t offset = address - begin;
  const bool inside = offset < allocation.size && size <= allocation.size - offset;
  return inside && (device < 0 || allocation.device == device) ? allocation.memory.get() + offset : nullptr;
}

bool FakeCuda::Work::is_registered(const unsigned char* address, std::size_t size, int device) const {
  auto after = registrations.upper_bound(address);
  if (after == registrations.begin()) {
    return false;
  }
  const auto& [begin, registration] = *--after;
  const auto offset = static_cast<std::size_t>(address - begin);
  return offset < registration.size && size <= registration.size - offset &&
         (registration.device < 0 || registration.device == device);
}

bool FakeCuda::Work::in_use(const unsigned char* begin, std::size_t size) const {
  const auto overlaps = [&](const unsigned char* other, std::size_t bytes) {
    return other < begin + size && begin < other + bytes;
  };
  return std::ranges::any_of(under_way, [&](const Operation& one) {
    return overlaps(one.from, one.copy.bytes) || overlaps(one.to, one.copy.bytes);
  });
}

CUresult FakeCuda::Work::state_of(int device) const {
  const auto found = broken.find(device);
  return found == broken.end() ? CUDA_SUCCESS : found->second;
}

void FakeCuda::Work::ask(Stream& target, Operation operation) {
  target.queue.push_back(std::move(operation));
  ++target.asked;
  changed.notify_all();
}

CUresult FakeCuda::Work::copy(Copy::Kind kind, CUstream where, unsigned char* to, const unsigned char* from,
                              std::size_t bytes, Lock& lock) {
  const auto target = stream(where);
  if (target == nullptr) {
    return misuse(CUDA_ERROR_INVALID_HANDLE, "a copy on a stream that is none");
  }
  if (target->device != FakeCuda::current()) {
    return misuse(CUDA_ERROR_INVALID_CONTEXT, "a copy on a stream of another context");
  }
  if (to == nullptr || from == nullptr || bytes == 0) {
    return misuse(CUDA_ERROR_INVALID_VALUE, "a copy that is not inside of one allocation");
  }
  Operation operation{Operation::Kind::copy, nullptr, 0, {kind, target->device, bytes, copies++}, to, from};
  under_way.push_back(operation);
  ask(*target, std::move(operation));
  const unsigned char* host = kind == Copy::Kind::to_device ? from : to;
  if (kind != Copy::Kind::peer && !is_registered(host, bytes, target->device)) {
    ++FakeCuda::state().pageable_copies;
    wait_for(*target, lock);  // the caller may use the memory again at once
  }
  return state_of(target->device);
}

void FakeCuda::Work::wait_for(const Stream& stream, Lock& lock) {
  changed.wait(lock, [&, until = stream.asked] { return stream.done >= until; });
}

void FakeCuda::Work::run(Stream& stream) {
  Lock lock(mutex);
  for (;;) {
    changed.wait(lock, [&] { return stream.closing || !stream.queue.empty(); });
    if (stream.queue.empty()) {
      return;
    }
    const Operation operation = std::move(stream.queue.front());
    stream.queue.pop_front();
    switch (operation.kind) {
      case Operation::Kind::copy:
        make(operation, lock);
        break;
      case Operation::Kind::record:
        operation.event->reached = std::max(operation.event->reached, operation.generation);
        break;
    }
    ++stream.done;
    changed.notify_all();
  }
}

void FakeCuda::Work::make(const Operation& operation, Lock& lock) {
  if (state_of(operation.copy.device) == CUDA_SUCCESS) {
    lock.unlock();
    const auto& hook = FakeCuda::state().on_copy;
    const CUresult result = hook ? hook(operation.copy) : CUDA_SUCCESS;
    if (result == CUDA_SUCCESS) {
      std::memcpy(operation.to, operation.from, operation.copy.bytes);
    }
    lock.lock();
    if (result != CUDA_SUCCESS) {
      broken[operation.copy.device] = result;
    }
  }
  under_way.remove_if([&](const Operation& one) { return one.copy.number == operation.copy.number; });
}

std::shared_ptr<Stream> FakeCuda::Work::begin_stream(int device) {
  auto created = std::make_shared<Stream>();
  created->device = device;
  created->thread = std::thread([this, created = created.get()] { run(*created); });
  return created;
}

std::shared_ptr<Stream> FakeCuda::Work::stream(CUstream wanted) {
  if (wanted != nullptr || FakeCuda::current() < 0) {
    return find_in(streams, wanted);
  }
  std::shared_ptr<Stream>& found = default_streams[FakeCuda::current()];
  if (!found) {
    found = begin_stream(FakeCuda::current());
  }
  return found;
}

std::vector<std::shared_ptr<Stream>> FakeCuda::Work::streams_of(int device) const {
  std::vector<std::shared_ptr<Stream>> found;
  const auto add = [&](const std::shared_ptr<Stream>& stream) {
    if (stream->device == device) {
      found.push_back(stream);
    }
  };
  for (const auto& [number, stream] : streams) {
    add(stream);
  }
  for (const auto& [of, stream] : default_streams) {
    add(stream);
  }
  std::ranges::for_each(destroyed, add);
  return found;
}

std::shared_ptr<Event> FakeCuda::Work::event(CUevent wanted) const { return find_in(events, wanted); }

CUstream FakeCuda::Work::add(std::shared_ptr<Stream> created) {
  streams.emplace(next_handle, std::move(created));
  return handle<CUstream>(next_handle++);
}

CUevent FakeCuda::Work::add(std::shared_ptr<Event> created) {
  events.emplace(next_handle, std::move(created));
  return handle<CUevent>(next_handle++);
}

std::shared_ptr<Stream> FakeCuda::Work::take(CUstream wanted) {
  std::shared_ptr<Stream> found = find_in(streams, wanted);
  streams.erase(number(wanted));
  return found;
}

std::shared_ptr<Event> FakeCuda::Work::take(CUevent wanted) {
  std::shared_ptr<Event> found = event(wanted);
  events.erase(number(wanted));
  return found;
}

FakeCuda::FakeCuda() : work(std::make_unique<Work>()) {}

FakeCuda::~FakeCuda() { end_streams(); }

void FakeCuda::end_streams() const {
  {
    const Lock lock(work->mutex);
    for (auto& [number, stream] : work->streams) {
      stream->closing = true;
      work->destroyed.push_back(std::move(stream));
    }
    work->streams.clear();
    for (auto& [device, stream] : work->default_streams) {
      stream->closing = true;
      work->destroyed.push_back(std::move(stream));
    }
    work->default_streams.clear();
  }
  work->changed.notify_all();
  settle();
}

void FakeCuda::settle() const {
  std::vector<std::shared_ptr<Stream>> ending;
  {
    const Lock lock(work->mutex);
    ending.swap(work->destroyed);
  }
  for (const auto& stream : ending) {
    stream->thread.join();
  }
}

void FakeCuda::repair() const {
  const Lock lock(work->mutex);
  work->broken.clear();
}

FakeCuda::Live FakeCuda::live() const {
  const Lock lock(work->mutex);
  return {work->allocations.size() + work->physical.size(), work->registrations.size(), work->streams.size(),
          work->events.size(), work->addresses.size()};
}

std::size_t FakeCuda::peak_registered() const {
  const Lock lock(work->mutex);
  return work->peak_registered;
}

std::size_t FakeCuda::allocated(int device) const {
  const Lock lock(work->mutex);
  std::size_t bytes = 0;
  for (const auto& [address, allocation] : work->allocations) {
    bytes += allocation.device == device ? allocation.size : 0;
  }
  for (const auto& [handle, physical] : work->physical) {
    bytes += physical.device == device && !physical.taken ? physical.size : 0;
  }
  return bytes;
}

std::size_t FakeCuda::free_bytes(int device) const {
  const auto limit = memory_limit.find(device);
  const std::size_t all = limit == memory_limit.end() ? free_memory(device) : limit->second;
  return all - std::min(all, allocated(device));
}

std::vector<std::string> FakeCuda::misuses() const {
  const Lock lock(work->mutex);
  return work->misuses;
}

std::string FakeCuda::read(CUdeviceptr address, std::size_t size) const {
  const Lock lock(work->mutex);
  const unsigned char* bytes = work->find(address, size, -1);
  return bytes == nullptr ? "" : std::string(reinterpret_cast<const char*>(bytes), size);
}

void add_work(CudaDriver& driver) {
  add_memory(driver);
  add_mapped_memory(driver);
  add_streams(driver);
}

}  // namespace ortmulti::tests
