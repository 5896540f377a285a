#include "core/weights/store.hpp"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <new>
#include <string>
#include <thread>
#include <utility>

#include "core/base/cpu_affinity.hpp"
#include "core/base/error.hpp"
#include "core/base/fork.hpp"
#include "core/base/text.hpp"
#include "core/cuda/graph.hpp"
#include "core/ort/value.hpp"
#include "core/weights/reader.hpp"

namespace ortmulti {
namespace {

// What is copied at once. Another model's copy waits for no more than that: 0.3 ms at 50 GB/s.
constexpr std::uint64_t copied_at_once = 16U << 20U;

// Has `copy` ask a stream of the device, whose context is current, for each part; waits for all of them.
void copy_in_parts(CudaStartup& startup, int device, std::uint64_t bytes, const std::string& what, const auto& copy) {
  const CudaStream stream(startup, device);
  for (std::uint64_t at = 0; at < bytes; at += copied_at_once) {
    startup.check(copy(at, std::min(copied_at_once, bytes - at), stream.get()), what);
  }
  startup.check(startup.driver().stream_synchronize(stream.get()), what);
}

// ONNX Runtime writes no initializer. It compares the length with the shape.
Ort::Value value_over(const Weight& weight, const void* data, const Device& device) {
  auto* const bytes = const_cast<void*>(data);  // NOLINT(cppcoreguidelines-pro-type-const-cast)
  return Ort::Value::CreateTensor(memory_info(device), bytes, weight.length, weight.shape.data(), weight.shape.size(),
                                  static_cast<ONNXTensorElementDataType>(weight.data_type));
}

std::string map_of(const Offered& other) { return "map weights of process " + std::to_string(other.process); }

struct PinnedBytes {
  std::mutex mutex;
  std::uint64_t used = 0;
};

PinnedBytes& pinned_bytes() { return process_singleton<PinnedBytes>(); }

std::uint64_t max_pinned_bytes() {
  if (const char* given = std::getenv("ORTMULTI_PINNED_BYTES"); given != nullptr && *given != '\0') {
    const auto bytes = whole_number<std::uint64_t>(given);
    if (!bytes) {
      throw Error(ErrorKind::invalid_argument,
                  std::string("ORTMULTI_PINNED_BYTES is a number of bytes, not '") + given + "'");
    }
    return *bytes;
  }
  return static_cast<std::uint64_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<std::uint64_t>(sysconf(_SC_PAGE_SIZE)) / 2;
}

}  // namespace

void note_not_shared(Timeline* timeline, const std::exception& problem) noexcept {
  try {
    if (timeline != nullptr) {
      timeline->note(std::string("not shared with other processes: ") + problem.what());
    }
  } catch (const std::bad_alloc&) {  // NOLINT(bugprone-empty-catch): the load is worth more than the note
  }
}

PinnedWeights::Share::Share(std::uint64_t wanted) : bytes(wanted) {
  const std::uint64_t most = max_pinned_bytes();
  PinnedBytes& all = pinned_bytes();
  const std::lock_guard lock(all.mutex);
  if (bytes > most || all.used > most - bytes) {
    throw Error(ErrorKind::out_of_memory, "a pinned copy of the weights takes " + megabytes(bytes) +
                                              " of the host's memory, and the copies of this "
                                              "process take " +
                                              megabytes(all.used) + " of at most " + megabytes(most) +
                                              ": raise ORTMULTI_PINNED_BYTES, or sleep without keep='pinned'");
  }
  all.used += bytes;
}

PinnedWeights::Share::~Share() {
  PinnedBytes& all = pinned_bytes();
  const std::lock_guard lock(all.mutex);
  all.used -= bytes;
}

PinnedWeights::PinnedWeights(CudaStartup& startup, const CudaWeightStore& store)
    : startup_(startup),
      device_(store.device().index),
      share_(store.plan().slab_bytes),
      memory_(std::make_unique<PinnedBuffers>(std::max<std::uint64_t>(share_.bytes, 1), 1)) {
  const ScopedContext current(startup_, device_);
  memory_->pin(startup_, to_string(store.device()));
  try {
    copy_in_parts(startup_, device_, share_.bytes, "copying weights from " + to_string(store.device()),
                  [&](std::uint64_t at, std::uint64_t bytes, CUstream stream) {
                    return startup_.driver().memcpy_dtoh_async((*memory_)[0] + at, store.slab() + at, bytes, stream);
                  });
  } catch (...) {
    memory_.reset();  // with the context; the stream has waited for a copy that was under way
    throw;
  }
}

PinnedWeights::~PinnedWeights() {
  try {
    const ScopedContext current(startup_, device_);
    memory_.reset();
  } catch (const Error&) {  // NOLINT(bugprone-empty-catch): the driver has shut down, or is the parent's
  }
}

void PinnedWeights::copy_to(const CudaWeightStore& store) const {
  const int device = store.device().index;
  const ScopedContext current(startup_, device);
  copy_in_parts(startup_, device, share_.bytes, "copying weights to " + to_string(store.device()),
                [&](std::uint64_t at, std::uint64_t bytes, CUstream stream) {
                  return startup_.driver().memcpy_htod_async(store.slab() + at, (*memory_)[0] + at, bytes, stream);
                });
}

CudaWeightStore::CudaWeightStore(CudaStartup& startup, int device, std::shared_ptr<const WeightPlan> plan,
                                 Timeline* timeline, std::string key, const Offered* other)
    : startup_(startup), device_(Device::cuda(device)), plan_(std::move(plan)), key_(std::move(key)) {
  startup.make_current(device, timeline);  // which has spans of its own
  const MindsNoCaptures mode(startup.driver());
  const ScopedSpan span(timeline, other != nullptr ? map_of(*other) : "allocate weights", to_string(device_));
  const auto stable = key_.empty() ? CudaMemory::Address::stable : CudaMemory::Address::shared;
  memory_ = std::make_unique<CudaMemory>(
      startup, device, plan_->slab_bytes, CudaMemory::Purpose("the weights take", MemoryUse::weights),
      plan_->base ? CudaMemory::Address::plain : stable, other ? &other->memory : nullptr);
}

void CudaWeightStore::share(Timeline* timeline, Descriptor other) {
  if (key_.empty()) {
    return;
  }
  try {
    Descriptor memory = other ? std::move(other) : memory_->share();
    offer_ = std::make_unique<WeightOffer>(key_, Offered{.model = plan_->list.sources.front()->name(),
                                                         .device = startup_.describe(device_.index).uuid,
                                                         .bytes = memory_->mapped_bytes(),
                                                         .memory = std::move(memory)});
  } catch (const Error& error) {
    note_not_shared(timeline, error);
  }
}

CUdeviceptr CudaWeightStore::address(std::size_t weight) const {
  const std::optional<std::size_t>& in_base = plan_->in_base[weight];
  return in_base ? plan_->base->address(*in_base) : slab() + plan_->slab_offsets[weight];
}

void CudaWeightStore::offer() const {
  const std::lock_guard lock(plan_->family->mutex);
  auto& stores = plan_->family->stores;
  std::erase_if(stores, [](const auto& other) { return other.expired(); });
  stores.push_back(weak_from_this());
  try {
    if (plan_->family->sample.empty()) {
      plan_->family->sample = sample_of(plan_->list);
    }
  } catch (const Error&) {  // NOLINT(bugprone-empty-catch): a file that has gone meanwhile cannot be read again
  }
}

WeightStore::Hold CudaWeightStore::hold() const {
  if (plan_->base) {
    return plan_->base->hold();
  }
  Hold hold(in_use_);
  if (asleep_) {
    throw Error(ErrorKind::device,
                "the weights of this session are asleep on " + to_string(device_) + ": Pool.wake brings them back");
  }
  return hold;
}

bool CudaWeightStore::sleep(HostCopy copy, std::chrono::steady_clock::time_point until) {
  if (copy != HostCopy::none && !pinned_ && !asleep_) {
    const std::lock_guard lock(plan_->family->mutex);
    pinned_ = plan_->family->pinned.lock();
    try {
      if (!pinned_) {
        pinned_ = std::make_shared<const PinnedWeights>(startup_, *this);
        plan_->family->pinned = pinned_;
      }
    } catch (const Error& error) {
      if (copy == HostCopy::pinned || error.kind() != ErrorKind::out_of_memory) {
        throw;
      }
    }
  }
  std::unique_lock lock(in_use_, std::try_to_lock);
  while (!lock && std::chrono::steady_clock::now() < until) {  // runs come and go
    std::this_thread::sleep_for(std::chrono::microseconds(100));
    static_cast<void>(lock.try_lock());
  }
  if (!lock) {
    return false;
  }
  if (!asleep_) {
    offer_.reset();  // whose descriptor would keep the memory
    memory_->give_back();
    asleep_ = true;
    ++sleeps_;
  }
  return true;
}

bool CudaWeightStore::take_from_process(Timeline* timeline) {
  try {
    std::optional<Offered> other = key_.empty() ? std::nullopt : std::move(find_offers({key_}).front());
    if (!other || other->bytes != memory_->mapped_bytes()) {
      return false;
    }
    const ScopedSpan span(timeline, map_of(*other), to_string(device_));
    memory_->take(&other->memory);
    share(timeline, std::move(other->memory));
    return true;
  } catch (const Error& error) {
    note_not_shared(timeline, error);
    return false;
  }
}

void CudaWeightStore::wake(Timeline* timeline) {
  startup_.make_current(device_.index);
  const MindsNoCaptures mode(startup_.driver());
  if (take_from_process(timeline)) {
    const std::unique_lock lock(in_use_);
    asleep_ = false;
    return;
  }
  memory_->take();
  try {
    if (!copy_from_peer(timeline)) {
      std::shared_ptr<const PinnedWeights> pinned = pinned_;
      if (!pinned) {
        const std::lock_guard lock(plan_->family->mutex);
        pinned = plan_->family->pinned.lock();
      }
      if (pinned) {
        const ScopedSpan span(timeline, "copy weights from pinned memory", to_string(device_));
        pinned->copy_to(*this);
      } else {
        read_files(timeline);
      }
    }
    share(timeline);
  } catch (...) {
    try {
      memory_->give_back();
    } catch (const Error&) {  // NOLINT(bugprone-empty-catch): then the next wake has it already
    }
    throw;
  }
  const std::unique_lock lock(in_use_);
  asleep_ = false;
}

bool CudaWeightStore::copy_from_peer(Timeline* timeline) const {
  std::vector<std::shared_ptr<const CudaWeightStore>> others;
  {
    const std::lock_guard lock(plan_->family->mutex);
    for (const auto& known : plan_->family->stores) {
      if (auto other = known.lock(); other && other.get() != this && other->device_ != device_) {
        others.push_back(std::move(other));
      }
    }
  }
  for (const auto& from : others) {
    const Hold awake(from->in_use_, std::try_to_lock);
    if (!awake || from->asleep_ || !startup_.can_access_peer(device_.index, from->device_.index)) {
      continue;
    }
    const std::string what = "copy weights from " + to_string(from->device_);
    const ScopedSpan span(timeline, what, to_string(device_));
    const CudaDriver& driver = startup_.driver();
    static_cast<void>(driver.ctx_enable_peer_access(from->context(), 0));  // see WeightLoader::copy_from
    copy_in_parts(
        startup_, device_.index, plan_->slab_bytes, what, [&](std::uint64_t at, std::uint64_t bytes, CUstream stream) {
          return driver.memcpy_peer_async(slab() + at, context(), from->slab() + at, from->context(), bytes, stream);
        });
    return true;
  }
  return false;
}

void CudaWeightStore::read_files(Timeline* timeline) {
  const ScopedSpan span(timeline, "load weights", to_string(device_));
  check_sample();
  if (!buffers_) {
    buffers_ = KeptBuffers::instance(startup_, device_.index);
  }
  LoaderOptions options;
  options.kept = buffers_;
  WeightReader reader(startup_, device_.index, plan_, options, nullptr,
                      cpus_near(startup_.describe(device_.index).pci_bus_id), nullptr);
  static_cast<void>(reader.fill({shared_from_this()}));
}

void CudaWeightStore::check_sample() const {
  std::vector<std::string> loaded;
  {
    const std::lock_guard lock(plan_->family->mutex);
    loaded = plan_->family->sample;
  }
  const std::vector<std::string> now = sample_of(plan_->list);
  for (std::size_t i = 0; i < loaded.size(); ++i) {
    if (now[i] != loaded[i]) {
      throw Error(ErrorKind::weights,
                  in_quotes(plan_->list.sources[i]->name()) + " was written anew after it was loaded; load again");
    }
  }
}

void CudaWeightStore::add_to(Ort::SessionOptions& options) const {
  const std::vector<Weight>& weights = plan_->list.weights;
  std::call_once(values_made_, [&] {
    values_.reserve(weights.size());
    for (std::size_t i = 0; i < weights.size(); ++i) {
      values_.push_back(value_over(weights[i], to_pointer(address(i)), device_));
    }
  });
  for (std::size_t i = 0; i < weights.size(); ++i) {
    options.AddInitializer(weights[i].name.c_str(), values_[i]);
  }
}

HostWeightStore::HostWeightStore(WeightList list, HostMemory memory)
    : list_(std::move(list)), memory_(std::move(memory)) {
  for (std::size_t i = 0; i < list_.weights.size(); ++i) {
    values_.push_back(value_over(list_.weights[i], memory_[i].get(), device_));
  }
}

void HostWeightStore::add_to(Ort::SessionOptions& options) const {
  for (std::size_t i = 0; i < values_.size(); ++i) {
    options.AddInitializer(list_.weights[i].name.c_str(), values_[i]);
  }
}

}  // namespace ortmulti
