#include "core/weights/loader.hpp"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <limits>
#include <set>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "core/base/cpu_affinity.hpp"
#include "core/base/error.hpp"
#include "core/base/scope_exit.hpp"
#include "core/base/text.hpp"
#include "core/cuda/graph.hpp"
#include "core/ort/library.hpp"

namespace ortmulti {
namespace {

// How much of the slab a device waits for before it copies that from another: large enough that the waiting costs
// nothing, small enough that it is done soon after the first.
constexpr std::uint64_t peer_step = 64U << 20U;

constexpr std::size_t no_source = static_cast<std::size_t>(-1);

}  // namespace

WeightLoader::WeightLoader(CudaStartup& startup, SharedWeights weights, std::vector<int> devices,
                           std::shared_ptr<Timeline> timeline, bool keep_going)
    : startup_(startup),
      weights_(std::move(weights)),
      devices_(std::move(devices)),
      timeline_(std::move(timeline)),
      keep_going_(keep_going),
      total_bytes_(weights_.plan->file_bytes()),
      slots_(devices_.size()) {
  weights_.fill = weights_.fill && !weights_.plan->runs.empty();  // a pass over nothing would open the files
  for (const int device : devices_) {
    weights_.plan->check_device(Device::cuda(device));
    context_was_there_.push_back(startup_.has_context(device));
  }
}

std::size_t WeightLoader::index_of(int device) const {
  return static_cast<std::size_t>(std::ranges::find(devices_, device) - devices_.begin());
}

std::unique_ptr<WeightReader> WeightLoader::new_reader(int device) {
  std::vector<int> cpus;
  std::uint64_t total = std::numeric_limits<std::uint64_t>::max();
  try {
    const CudaDeviceInfo info = startup_.describe(device);
    total = info.total_memory;
    cpus = cpus_near(info.pci_bus_id);
  } catch (const Error&) {  // NOLINT(bugprone-empty-catch): threads on any CPU, and the allocation checks
  }
  // Before the reader lists its jobs: of weights in a sparse file they may not fit into the host's memory.
  if (weights_.plan->slab_bytes > total) {
    throw Error(ErrorKind::out_of_memory, "the weights take " + megabytes(weights_.plan->slab_bytes) + " on " +
                                              to_string(Device::cuda(device)) + ", which has " + megabytes(total) +
                                              " in total");
  }
  LoaderOptions options = weights_.loader;
  if (weights_.share) {
    options.each_chunk = [this] { renew_locks(); };
  }
  return std::make_unique<WeightReader>(startup_, device, weights_.plan, options, weights_.prefetch, std::move(cpus),
                                        timeline_.get());
}

void WeightLoader::bring_up(std::size_t index) noexcept {
  const ScopeExit let_others_load([&] {
    const std::lock_guard lock(mutex_);
    slots_[index].lock.reset();
  });
  if (weights_.share && weights_.fill) {
    std::call_once(others_found_, [this] { find_others(); });
    if (auto& other = slots_[index].other; other && map_other(index, *other)) {
      return;
    }
  }
  try {
    std::unique_ptr<WeightReader> reader;
    if (weights_.fill && index == 0 && !others_offer_) {
      reader = new_reader(devices_[0]);  // it has read its first chunks by the time the context is there
    }
    auto store =
        std::make_shared<CudaWeightStore>(startup_, devices_[index], weights_.plan, timeline_.get(), slots_[index].key);
    {
      const std::lock_guard lock(mutex_);
      slots_[index].store = std::move(store);
      slots_[index].filled = !weights_.fill;
      changed_.notify_all();
    }
    if (weights_.fill) {
      fill(index, std::move(reader));
      const std::lock_guard lock(mutex_);
      if (slots_[index].filled) {
        slots_[index].store->offer();
      }
    }
  } catch (...) {
    fail(index, std::current_exception());
  }
}

std::size_t WeightLoader::find_source(std::size_t index) {
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    if (i != index && (slots_[i].filled || slots_[i].progress) &&
        startup_.can_access_peer(devices_[index], devices_[i])) {
      return i;
    }
  }
  return no_source;
}

bool WeightLoader::may_read(std::size_t index) const {
  const auto first = std::ranges::find_if(slots_, [](const Slot& slot) { return !slot.error; });
  const bool others_come = std::ranges::any_of(slots_, [](const Slot& slot) { return slot.other.has_value(); });
  return !reading_ && !others_come && (&*first == &slots_[index] || first->filled);
}

void WeightLoader::fill(std::size_t index, std::unique_ptr<WeightReader> reader) {
  for (bool done = false; !done;) {
    std::size_t source = no_source;
    {
      const ScopedSpan span(index == 0 ? nullptr : timeline_.get(), "wait for weights",
                            to_string(Device::cuda(devices_[index])));
      std::unique_lock lock(mutex_);
      const auto my_turn = [&] {
        if (stop_.stop_requested() || slots_[index].taken) {
          return true;
        }
        source = find_source(index);
        // The first pass is the first device's; another one follows where a device can reach none that is filled.
        return source != no_source || may_read(index);
      };
      changed_.wait(lock, my_turn);
      if (stop_.stop_requested()) {
        return;
      }
      if (slots_[index].taken) {
        changed_.wait(lock, [&] { return stop_.stop_requested() || slots_[index].filled || !slots_[index].taken; });
        if (stop_.stop_requested() || slots_[index].filled) {
          return;
        }
        continue;  // the other's pass has failed
      }
      slots_[index].taken = true;
      reading_ = reading_ || source == no_source;
    }
    const auto ended = [&](bool again) {
      const std::lock_guard lock(mutex_);
      reading_ = reading_ && source != no_source;
      slots_[index].filled = done;
      slots_[index].taken = !again;
      changed_.notify_all();
    };
    try {
      done = source != no_source ? copy_from(source, index)
                                 : read_to(index, reader ? std::move(reader) : new_reader(devices_[index]));
    } catch (...) {
      ended(false);
      throw;
    }
    if (stop_.stop_requested()) {
      return;
    }
    ended(!done);
  }
}

bool WeightLoader::read_to(std::size_t index, std::unique_ptr<WeightReader> reader) {
  std::vector<std::size_t> filling{index};
  std::vector<std::shared_ptr<CudaWeightStore>> targets;
  {
    std::unique_lock lock(mutex_);
    // Those whose contexts were there before will be here at once, and one pass can serve them all.
    changed_.wait(lock, [&] {
      bool all = true;
      for (std::size_t i = 0; i < slots_.size(); ++i) {
        all = all && (!context_was_there_[i] || slots_[i].store || slots_[i].error);
      }
      return all || stop_.stop_requested();
    });
    if (stop_.stop_requested()) {
      return false;
    }
    for (std::size_t i = 0; i < slots_.size(); ++i) {
      if (i != index && slots_[i].store && !slots_[i].taken && !slots_[i].alone && !slots_[index].alone &&
          !startup_.can_access_peer(devices_[i], devices_[index])) {
        filling.push_back(i);
      }
    }
    for (const std::size_t i : filling) {  // once no call of the driver can fail any more
      slots_[i].taken = true;
      targets.push_back(slots_[i].store);
    }
    slots_[index].progress = reader->progress();
    reader_ = reader.get();
    changed_.notify_all();
  }
  const auto finished = [&](bool filled) {
    const std::lock_guard lock(mutex_);
    reader_ = nullptr;
    for (const std::size_t i : filling) {
      slots_[i].filled = filled;
      slots_[i].taken = filled || i == index;
      slots_[i].alone = !filled;
    }
    if (!filled) {
      slots_[index].progress->abandon();
      slots_[index].progress.reset();
    }
    changed_.notify_all();
  };
  try {
    const ScopedSpan span(timeline_.get(), "load weights", to_string(Device::cuda(devices_[index])));
    const bool filled = reader->fill(targets);
    if (filled) {
      for (const auto& target : targets) {
        target->share(timeline_.get());
      }
    }
    finished(filled);
    return filled;
  } catch (...) {
    finished(false);
    if (keep_going_ && filling.size() > 1) {
      return false;
    }
    throw;
  }
}

bool WeightLoader::copy_from(std::size_t source, std::size_t index) {
  std::shared_ptr<CudaWeightStore> from;
  std::shared_ptr<CudaWeightStore> to;
  std::shared_ptr<FillProgress> progress;
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return stop_.stop_requested() || slots_[index].wanted; });
    if (!slots_[source].filled && !slots_[source].progress) {
      return false;
    }
    from = slots_[source].store;
    to = slots_[index].store;
    progress = slots_[source].filled ? nullptr : slots_[source].progress;
  }
  const std::string what = "copying weights from " + to_string(from->device()) + " to " + to_string(to->device());
  const ScopedSpan span(timeline_.get(), "copy weights from " + to_string(from->device()), to_string(to->device()));
  const CudaDriver& driver = startup_.driver();
  const MindsNoCaptures mode(driver);
  startup_.check(driver.ctx_set_current(to->context()), what);
  // Without it the driver goes by the host, which is slower. It stays: other libraries of the process may ask
  // meanwhile, be told that it is there, and count on it.
  static_cast<void>(driver.ctx_enable_peer_access(from->context(), 0));
  const CudaStream stream(startup_, to->device().index);
  const std::uint64_t bytes = weights_.plan->slab_bytes;
  for (std::uint64_t copied = 0; copied < bytes;) {
    const std::uint64_t end = progress ? progress->wait_beyond(copied, peer_step, stop_.get_token()) : bytes;
    if (stop_.stop_requested() || end == copied) {
      return false;
    }
    startup_.check(driver.memcpy_peer_async(to->slab() + copied, to->context(), from->slab() + copied, from->context(),
                                            end - copied, stream.get()),
                   what);
    startup_.check(driver.stream_synchronize(stream.get()), what);
    copied = end;
  }
  to->share(timeline_.get());
  return true;
}

void WeightLoader::want(std::size_t index) {
  const std::lock_guard lock(mutex_);
  slots_[index].wanted = true;
  changed_.notify_all();
}

std::shared_ptr<const CudaWeightStore> WeightLoader::allocated(std::size_t index) {
  want(index);
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return stop_.stop_requested() || slots_[index].store || slots_[index].error; });
  if (stop_.stop_requested() || slots_[index].error) {
    throw_stopped(index);
  }
  return slots_[index].store;
}

void WeightLoader::wait_filled(std::size_t index) {
  want(index);
  if (!wait_until_filled(index)) {
    const std::lock_guard lock(mutex_);
    throw_stopped(index);
  }
}

bool WeightLoader::wait_until_filled(std::size_t index) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return stop_.stop_requested() || slots_[index].filled || slots_[index].error; });
  return slots_[index].filled;
}

void WeightLoader::throw_stopped(std::size_t index) {
  if (slots_[index].error) {
    std::rethrow_exception(slots_[index].error);
  }
  if (error_) {
    std::rethrow_exception(error_);
  }
  throw Error(ErrorKind::closed, "loading the weights was stopped");
}

void WeightLoader::fail(std::size_t index, std::exception_ptr error) {
  {
    const std::lock_guard lock(mutex_);
    if (keep_going_) {
      slots_[index].error = std::move(error);
      changed_.notify_all();
      return;
    }
    if (!error_ && !stop_.stop_requested()) {
      error_ = std::move(error);
    }
  }
  stop();
}

void WeightLoader::stop() {
  {
    const std::lock_guard lock(mutex_);
    stop_.request_stop();
    if (reader_ != nullptr) {
      reader_->abandon();
    }
    changed_.notify_all();
  }
  interrupt(weights_.plan->list);
}

std::uint64_t WeightLoader::copied_bytes() const {
  const std::lock_guard lock(mutex_);
  if (std::ranges::any_of(slots_, [](const Slot& slot) { return slot.filled; })) {
    return total_bytes_;
  }
  return reader_ == nullptr ? 0 : reader_->copied_bytes();
}

}  // namespace ortmulti
