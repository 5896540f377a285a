#include "core/weights/plan.hpp"

#include <fcntl.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <exception>
#include <iterator>
#include <limits>
#include <map>
#include <new>
#include <string>
#include <system_error>
#include <thread>
#include <tuple>
#include <utility>

#include "core/base/cpu_affinity.hpp"
#include "core/base/error.hpp"
#include "core/base/file.hpp"
#include "core/weights/store.hpp"

namespace ortmulti {
namespace {

// Bytes between two weights that are read and copied along, rather than beginning another piece.
constexpr std::uint64_t max_gap = 4096;

// Throws where a model's weights need a larger memory than an address can reach.
std::uint64_t sum(std::uint64_t left, std::uint64_t right) {
  std::uint64_t result = 0;
  if (__builtin_add_overflow(left, right, &result)) {
    throw Error(ErrorKind::out_of_memory, "the weights take more than " +
                                              std::to_string(std::numeric_limits<std::uint64_t>::max()) +
                                              " bytes; check the offsets and lengths in the model");
  }
  return result;
}

std::uint64_t align(std::uint64_t offset) {
  return sum(offset, WeightPlan::alignment - 1) / WeightPlan::alignment * WeightPlan::alignment;
}

// Equal for weights with the same values. The identity comes last: it takes longest to compare.
auto key_of(const WeightList& list, const Weight& weight) {
  return std::tie(weight.offset, weight.length, weight.data_type, weight.shape,
                  list.sources[weight.source]->identity());
}

// The index of each wanted weight's values among those that are there.
std::vector<std::optional<std::size_t>> find_weights(const WeightList& wanted, const WeightList& there) {
  std::map<decltype(key_of(there, there.weights[0])), std::size_t> places;
  for (std::size_t i = 0; i < there.weights.size(); ++i) {
    places.emplace(key_of(there, there.weights[i]), i);
  }
  std::vector<std::optional<std::size_t>> result;
  for (const Weight& weight : wanted.weights) {
    const auto found = places.find(key_of(wanted, weight));
    result.push_back(found == places.end() ? std::nullopt : std::optional(found->second));
  }
  return result;
}

}  // namespace

WeightPlan plan_weights(WeightList list, std::shared_ptr<const CudaWeightStore> base) {
  WeightPlan plan;
  plan.list = std::move(list);
  plan.base = std::move(base);
  const std::vector<Weight>& weights = plan.list.weights;
  plan.in_base.resize(weights.size());
  if (plan.base) {
    plan.in_base = find_weights(plan.list, plan.base->plan().list);
  }
  std::vector<std::size_t> order;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    if (!plan.in_base[i]) {
      order.push_back(i);
    }
  }
  std::ranges::sort(order, [&](std::size_t a, std::size_t b) {
    const auto place = [&](std::size_t i) {
      return std::tuple(weights[i].source, weights[i].offset, weights[i].length, i);
    };
    return place(a) < place(b);
  });

  plan.slab_offsets.resize(weights.size());
  const Weight* previous = nullptr;
  std::uint64_t previous_slab = 0;
  for (const std::size_t index : order) {
    const Weight& weight = weights[index];
    const std::uint64_t weight_end = sum(weight.offset, weight.length);
    if (previous != nullptr && previous->source == weight.source && previous->offset == weight.offset &&
        previous->length == weight.length) {
      plan.slab_offsets[index] = previous_slab;
      continue;
    }
    bool extended = false;
    if (!plan.runs.empty() && plan.runs.back().source == weight.source) {
      WeightPiece& run = plan.runs.back();
      const std::uint64_t end = run.offset + run.length;
      if (weight.offset >= end && weight.offset - end <= max_gap) {
        const std::uint64_t slab = run.slab_offset + (weight.offset - run.offset);
        if (slab % WeightPlan::alignment == 0) {
          run.length = weight_end - run.offset;
          plan.slab_offsets[index] = slab;
          extended = true;
        }
      }
    }
    if (!extended) {
      const std::uint64_t slab = align(plan.slab_bytes);
      plan.runs.push_back({weight.source, weight.offset, slab, weight.length});
      plan.slab_offsets[index] = slab;
    }
    plan.slab_bytes = sum(plan.slab_offsets[index], weight.length);
    previous = &weight;
    previous_slab = plan.slab_offsets[index];
  }
  return plan;
}

std::uint64_t WeightPlan::file_bytes() const noexcept {
  std::uint64_t bytes = 0;
  for (const WeightPiece& run : runs) {
    bytes += run.length;
  }
  return bytes;
}

std::vector<WeightJob> WeightPlan::jobs(std::uint64_t max_bytes, bool separate) const {
  std::vector<WeightJob> jobs;
  for (WeightPiece rest : runs) {
    while (rest.length > 0) {
      if (separate || jobs.empty() || jobs.back().bytes == max_bytes) {
        jobs.emplace_back();
      }
      WeightJob& job = jobs.back();
      WeightPiece piece = rest;
      piece.length = std::min(rest.length, max_bytes - job.bytes);
      job.bytes += piece.length;
      job.slab_end = piece.slab_offset + piece.length;
      job.pieces.push_back(piece);
      rest.offset += piece.length;
      rest.slab_offset += piece.length;
      rest.length -= piece.length;
    }
  }
  return jobs;
}

void WeightPlan::check_device(const Device& device) const {
  if (base && base->device() != device) {
    throw Error(ErrorKind::invalid_argument, "weights beside a session on " + to_string(base->device()) +
                                                 " cannot be used on " + to_string(device) +
                                                 ": create the sessions on the same device, or without beside");
  }
}

std::vector<std::string> sample_of(const WeightList& list) {
  constexpr std::size_t max_samples = 256;
  constexpr std::uint64_t max_bytes = 64;
  std::vector<std::shared_ptr<const InputFile>> open(list.sources.size());  // for all reads
  std::ranges::transform(list.sources, open.begin(), [](const auto& one) { return one->open(); });
  std::vector<std::array<std::uint64_t, 3>> places;  // a model and its entry in the cache list them in other orders
  std::ranges::transform(list.weights, std::back_inserter(places), [](const Weight& weight) {
    return std::array<std::uint64_t, 3>{weight.source, weight.offset, weight.length};
  });
  std::ranges::sort(places);
  const auto repeated = std::ranges::unique(places);
  places.erase(repeated.begin(), repeated.end());
  const std::size_t count = std::min(max_samples, places.size());
  const auto for_each = [&](const auto& call) {
    for (std::size_t i = 0; i < count; ++i) {
      const auto [source, offset, length] = places[count == 1 ? 0 : i * (places.size() - 1) / (count - 1)];
      const std::uint64_t bytes = std::min(max_bytes, length);
      if (bytes > 0 && open[source]) {
        call(source, offset + (length - bytes) / 2, bytes);
      }
    }
  };
  for_each([&](std::size_t source, std::uint64_t offset, std::uint64_t bytes) {  // a disk reads several at once
    static_cast<void>(posix_fadvise(open[source]->descriptor(), static_cast<off_t>(offset), static_cast<off_t>(bytes),
                                    POSIX_FADV_WILLNEED));
  });
  std::vector<std::string> samples(list.sources.size());
  for_each([&](std::size_t source, std::uint64_t offset, std::uint64_t bytes) {
    std::string& sample = samples[source];
    sample.resize(sample.size() + bytes);
    list.sources[source]->read(sample.data() + sample.size() - bytes, bytes, offset);
  });
  return samples;
}

Reading reading_of(const WeightList& list) noexcept {
  Reading all;
  for (const auto& source : list.sources) {
    const Reading one = source->reading();
    all = {std::max(all.at_once, one.at_once), std::max(all.bytes, one.bytes)};
  }
  return all;
}

void interrupt(const WeightList& list) noexcept {
  for (const auto& source : list.sources) {
    source->interrupt();
  }
}

int threads_for_files() {
  constexpr int max_threads = 10;
  return std::clamp(usable_cores(), 1, max_threads);
}

namespace {

// In huge pages, if the system has them: each page costs a fault, and a GB has 262,144 small ones.
std::shared_ptr<unsigned char> new_slab(std::uint64_t bytes, const std::string& source) {
  constexpr std::align_val_t huge_page{2U << 20U};
  auto* const memory = static_cast<unsigned char*>(::operator new(bytes, huge_page, std::nothrow));
  if (memory == nullptr) {
    throw Error(ErrorKind::out_of_memory, "the host has no memory for " + megabytes(bytes) + " of '" + source +
                                              "': free memory, or check the size of that file");
  }
  static_cast<void>(madvise(memory, bytes, MADV_HUGEPAGE));
  return {memory, [](unsigned char* slab) { ::operator delete(slab, huge_page); }};
}

// Reads the pieces of a plan into memory, with this thread and others.
class HostReader : NonCopyable {
 public:
  HostReader(const WeightPlan& plan, unsigned char* slab, const std::stop_token& stop, std::atomic<std::uint64_t>* read)
      : plan_(plan), slab_(slab), stop_(stop), read_(read) {
    constexpr std::uint64_t default_bytes = 4U << 20U;
    const Reading best = reading_of(plan.list);
    jobs_ = plan.jobs(best.bytes != 0 ? best.bytes : default_bytes, best.at_once != 0);
    const auto wanted = static_cast<std::size_t>(best.at_once != 0 ? best.at_once : threads_for_files());
    try {
      for (std::size_t i = 1; i < std::min(wanted, jobs_.size()); ++i) {
        threads_.emplace_back([this] { run(); });
      }
    } catch (const std::system_error&) {  // NOLINT(bugprone-empty-catch): fewer do it, this one at least
    }
  }

  void finish() {
    run();
    threads_.clear();  // joins them
    if (error_) {
      std::rethrow_exception(error_);
    }
  }

 private:
  void run() noexcept {
    try {
      read_jobs();
    } catch (...) {
      {
        const std::lock_guard lock(mutex_);
        error_ = error_ ? error_ : std::current_exception();
        failed_ = true;
      }
      interrupt(plan_.list);
    }
  }

  void read_jobs() {
    for (std::size_t next = next_job_++; next < jobs_.size(); next = next_job_++) {
      for (const WeightPiece& piece : jobs_[next].pieces) {
        if (failed_) {
          return;
        }
        if (stop_.stop_requested()) {
          throw Error(ErrorKind::closed, "loading the weights was stopped");
        }
        plan_.list.sources[piece.source]->read(slab_ + piece.slab_offset, piece.length, piece.offset);
        if (read_ != nullptr) {
          *read_ += piece.length;
        }
      }
    }
  }

  const WeightPlan& plan_;
  unsigned char* slab_;
  const std::stop_token& stop_;
  std::atomic<std::uint64_t>* read_;
  std::vector<WeightJob> jobs_;
  std::atomic<std::size_t> next_job_{0};
  std::atomic<bool> failed_{false};
  std::mutex mutex_;
  std::exception_ptr error_;
  std::vector<std::jthread> threads_;  // end first
};

}  // namespace

HostMemory in_memory(const WeightList& list, const std::stop_token& stop, std::atomic<std::uint64_t>* read) {
  HostMemory mapped;
  for (const auto& source : list.sources) {
    mapped.push_back(source->map());
  }
  WeightList others{list.sources, {}, {}};
  HostMemory result;
  for (const Weight& weight : list.weights) {
    const Source& source = *list.sources.at(weight.source);
    if (!source.has(weight.length, weight.offset)) {
      throw Error(ErrorKind::weights, "'" + source.name() + "' ends before the weight '" + weight.name + "' does");
    }
    if (const auto& bytes = mapped[weight.source]) {
      result.emplace_back(bytes, bytes.get() + weight.offset);
    } else {
      result.emplace_back();
      others.weights.push_back(weight);
    }
  }
  if (others.weights.empty()) {
    return result;
  }
  const WeightPlan plan = plan_weights(std::move(others));
  const std::shared_ptr<unsigned char> slab = new_slab(plan.slab_bytes, plan.list.sources.front()->name());
  HostReader(plan, slab.get(), stop, read).finish();
  auto offset = plan.slab_offsets.begin();
  for (auto& bytes : result) {
    if (!bytes) {
      bytes = {slab, slab.get() + *offset++};
    }
  }
  return result;
}

WeightList read_to_memory(const WeightList& list, const std::stop_token& stop, std::atomic<std::uint64_t>* read) {
  HostMemory memory = in_memory(list, stop, read);
  WeightList result{{}, list.weights, list.left_out};
  for (std::size_t i = 0; i < result.weights.size(); ++i) {
    Weight& weight = result.weights[i];
    result.sources.push_back(
        memory_source(weight.name + " of " + list.sources[weight.source]->name(), std::move(memory[i]), weight.length));
    weight.source = i;
    weight.offset = 0;
  }
  return result;
}

}  // namespace ortmulti
