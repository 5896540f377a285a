#include "core/weights/reader.hpp"

#include <algorithm>
#include <deque>
#include <optional>
#include <system_error>
#include <utility>

#include "core/base/cpu_affinity.hpp"
#include "core/base/error.hpp"
#include "core/base/fork.hpp"
#include "core/base/scope_exit.hpp"
#include "core/cuda/graph.hpp"

namespace ortmulti {
namespace {

constexpr std::size_t max_kept = 10;
constexpr std::uint64_t default_chunk = 4U << 20U;

// What the machine's and the sources' numbers become: every field is set.
LoaderOptions choose_loader_options(LoaderOptions options, const WeightPlan& plan) {
  const Reading best = reading_of(plan.list);
  if (options.chunk_bytes == 0) {
    options.chunk_bytes = best.bytes != 0 ? best.bytes : default_chunk;
  }
  if (options.buffers_per_thread == 0) {
    // A copy to the GPU takes no time beside a range that comes over a network.
    options.buffers_per_thread = best.at_once != 0 ? 1 : 2;
  }
  if (options.reader_threads == 0) {
    options.reader_threads = best.at_once != 0 ? best.at_once : threads_for_files();
  }
  // A thread's buffers have to be pinned before its first chunk is copied: not for a few chunks.
  const std::uint64_t worth =
      plan.file_bytes() / (options.chunk_bytes * static_cast<std::uint64_t>(options.buffers_per_thread));
  options.reader_threads =
      static_cast<int>(std::clamp<std::uint64_t>(worth, 1, static_cast<std::uint64_t>(options.reader_threads)));
  return options;
}

}  // namespace

std::shared_ptr<KeptBuffers> KeptBuffers::instance(CudaStartup& startup, int device) {
  struct Known {
    std::mutex mutex;
    std::weak_ptr<KeptBuffers> kept;
  };
  auto& known = process_singleton<Known>();
  const std::lock_guard lock(known.mutex);
  auto kept = known.kept.lock();
  if (!kept) {
    kept = std::make_shared<KeptBuffers>(startup, device);
    known.kept = kept;
  }
  return kept;
}

KeptBuffers::~KeptBuffers() {
  try {
    const ScopedContext current(startup_, device_);
    all_.clear();
  } catch (const Error&) {  // NOLINT(bugprone-empty-catch): the driver has shut down, or is the parent's
  }
}

std::unique_ptr<PinnedBuffers> KeptBuffers::take(std::uint64_t each, int count) {
  const std::lock_guard lock(mutex_);
  const auto found = std::ranges::find_if(all_, [&](const auto& buffers) { return buffers->are(each, count); });
  if (found == all_.end()) {
    return nullptr;
  }
  auto taken = std::move(*found);
  all_.erase(found);
  return taken;
}

void KeptBuffers::give_back(std::unique_ptr<PinnedBuffers> buffers) {
  const std::lock_guard lock(mutex_);
  if (all_.size() < max_kept) {
    all_.push_back(std::move(buffers));
  }
}

void FillProgress::job_done(std::size_t job) {
  const std::lock_guard lock(mutex_);
  done_[job] = true;
  if (job != prefix_) {
    return;
  }
  while (prefix_ < done_.size() && done_[prefix_]) {
    ++prefix_;
  }
  advanced_.notify_all();
}

std::uint64_t FillProgress::wait_beyond(std::uint64_t above, std::uint64_t step, const std::stop_token& stop) {
  std::unique_lock lock(mutex_);
  const auto filled = [&] { return prefix_ == 0 ? 0 : ends_[prefix_ - 1]; };
  advanced_.wait(lock, stop, [&] { return abandoned_ || prefix_ == ends_.size() || filled() >= above + step; });
  return stop.stop_requested() || abandoned_ ? above : std::max(above, filled());
}

void FillProgress::abandon() {
  const std::lock_guard lock(mutex_);
  abandoned_ = true;
  advanced_.notify_all();
}

// The copies of one thread: a stream for each target, and for each buffer and target an event after its last copy.
class WeightReader::Copies {
 public:
  Copies(CudaStartup& startup, const std::vector<std::shared_ptr<CudaWeightStore>>& targets, int buffers)
      : startup_(startup), targets_(targets) {
    for (std::size_t i = 0; i < targets_.size(); ++i) {
      use(i);
      lanes_.emplace_back(startup_, targets_[i]->device().index, buffers);
    }
  }

  void copy(const WeightJob& job, const unsigned char* bytes, int buffer) {
    const CudaDriver& driver = startup_.driver();
    for (std::size_t i = 0; i < targets_.size(); ++i) {
      use(i);
      const unsigned char* from = bytes;
      for (const WeightPiece& piece : job.pieces) {
        check(driver.memcpy_htod_async(targets_[i]->slab() + piece.slab_offset, from, piece.length,
                                       lanes_[i].stream.get()),
              "copying weights", i);
        from += piece.length;
      }
      check(driver.event_record(lanes_[i].events[static_cast<std::size_t>(buffer)].get(), lanes_[i].stream.get()),
            "recording an event", i);
    }
  }

  // Waits until nothing reads the buffer any more.
  void wait(int buffer) {
    for (std::size_t i = 0; i < targets_.size(); ++i) {
      check(lanes_[i].events[static_cast<std::size_t>(buffer)].wait(), "copying weights", i);
    }
  }

 private:
  struct Lane {
    std::deque<CudaEvent> events;
    CudaStream stream;  // ends before its events do

    Lane(CudaStartup& startup, int device, int buffers) : stream(startup, device) {
      for (int buffer = 0; buffer < buffers; ++buffer) {
        events.emplace_back(startup, device);
      }
    }
  };

  void use(std::size_t target) {
    if (current_ != targets_[target].get()) {
      check(startup_.driver().ctx_set_current(targets_[target]->context()), "using the CUDA context", target);
      current_ = targets_[target].get();
    }
  }

  void check(CUresult result, const char* what, std::size_t target) const {
    if (result != CUDA_SUCCESS) {
      startup_.check(result, std::string(what) + " on " + to_string(targets_[target]->device()));
    }
  }

  CudaStartup& startup_;
  const std::vector<std::shared_ptr<CudaWeightStore>>& targets_;
  std::deque<Lane> lanes_;
  const CudaWeightStore* current_ = nullptr;
};

WeightReader::WeightReader(CudaStartup& startup, int device, std::shared_ptr<const WeightPlan> plan,
                           const LoaderOptions& options, std::shared_ptr<Prefetch> prefetch, std::vector<int> cpus,
                           Timeline* timeline)
    : startup_(startup),
      device_(device),
      plan_(std::move(plan)),
      options_(choose_loader_options(options, *plan_)),
      prefetch_(std::move(prefetch)),
      cpus_(std::move(cpus)),
      timeline_(timeline),
      jobs_(plan_->jobs(options_.chunk_bytes, reading_of(plan_->list).at_once != 0)) {
  std::vector<std::uint64_t> ends;
  ends.reserve(jobs_.size());
  for (const WeightJob& job : jobs_) {
    ends.push_back(job.slab_end);
  }
  progress_ = std::make_shared<FillProgress>(std::move(ends));
  try {
    for (const auto& source : plan_->list.sources) {
      open_.push_back(source->open());
    }
    threads_.reserve(static_cast<std::size_t>(options_.reader_threads));
    for (int i = 0; i < options_.reader_threads && !jobs_.empty(); ++i) {
      threads_.emplace_back([this] { run(); });
    }
  } catch (const std::system_error& error) {
    if (threads_.empty()) {
      throw Error(ErrorKind::runtime_exception, std::string("cannot start a thread to read weights: ") + error.what());
    }  // else fewer do it
  } catch (...) {
    abandon();
    throw;
  }
}

WeightReader::~WeightReader() { abandon(); }

bool WeightReader::fill(const std::vector<std::shared_ptr<CudaWeightStore>>& targets) {
  {
    const std::lock_guard lock(mutex_);
    targets_ = targets;
    changed_.notify_all();
  }
  threads_.clear();  // joins them
  targets_.clear();
  if (error_) {
    std::rethrow_exception(error_);
  }
  if (stop_.stop_requested()) {
    return false;
  }
  if (plan_->list.held.empty()) {  // what is held may lie elsewhere now
    for (const auto& source : plan_->list.sources) {
      source->check();
    }
  }
  return true;
}

void WeightReader::run() {
  try {
    read_jobs();
  } catch (...) {
    {
      const std::lock_guard lock(mutex_);
      error_ = error_ ? error_ : std::current_exception();
    }
    abandon();
    interrupt(plan_->list);
  }
}

void WeightReader::read_jobs() {
  std::optional<MindsNoCaptures> mode;  // once there is a context
  if (!cpus_.empty()) {
    static_cast<void>(stay_on(cpus_));  // slower without, and right
  }
  const int count = options_.buffers_per_thread;
  std::unique_ptr<PinnedBuffers> buffers = options_.kept ? options_.kept->take(options_.chunk_bytes, count) : nullptr;
  if (!buffers) {
    buffers = std::make_unique<PinnedBuffers>(options_.chunk_bytes, count);
  }
  const ScopeExit keep([&] {  // when the copies from them have ended
    if (options_.kept && buffers->pinned()) {
      options_.kept->give_back(std::move(buffers));
    }
  });
  std::vector<std::optional<std::size_t>> held(static_cast<std::size_t>(count));  // the job of each
  std::unique_ptr<Copies> copies;
  const std::int64_t start_ns = steady_now_ns();
  std::int64_t copy_ns = 0;
  const auto finish = [&](int buffer) {
    if (const auto job = std::exchange(held[static_cast<std::size_t>(buffer)], std::nullopt)) {
      copies->wait(buffer);
      progress_->job_done(*job);
    }
  };
  int buffer = 0;
  for (;;) {
    if (stop_.stop_requested()) {
      return;
    }
    const std::size_t index = next_job_.fetch_add(1);
    if (index >= jobs_.size()) {
      break;
    }
    const WeightJob& job = jobs_[index];
    finish(buffer);
    read(job, (*buffers)[buffer]);
    if (options_.each_chunk) {
      options_.each_chunk();
    }
    if (stop_.stop_requested()) {
      return;
    }
    if (!copies) {
      startup_.make_current(device_);
      mode.emplace(startup_.driver());
      if (!buffers->pinned()) {
        buffers->pin(startup_, to_string(Device::cuda(device_)));
      }
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, stop_.get_token(), [this] { return !targets_.empty(); });
      }
      if (stop_.stop_requested()) {
        return;
      }
      copies = std::make_unique<Copies>(startup_, targets_, count);
      copy_ns = steady_now_ns();
    }
    copies->copy(job, (*buffers)[buffer], buffer);
    held[static_cast<std::size_t>(buffer)] = index;
    copied_.fetch_add(job.bytes, std::memory_order_relaxed);
    buffer = (buffer + 1) % count;
  }
  const std::int64_t read_ns = steady_now_ns();
  if (copies) {
    for (int i = 0; i < count; ++i) {
      finish((buffer + i) % count);
    }
  }
  if (timeline_ != nullptr) {
    timeline_->add("read weights", start_ns, read_ns);
    if (copies) {
      timeline_->add("copy to device", copy_ns, steady_now_ns(), to_string(targets_.front()->device()));
    }
  }
}

void WeightReader::read(const WeightJob& job, unsigned char* buffer) const {
  std::size_t at = 0;
  for (const WeightPiece& piece : job.pieces) {
    const Source& source = *plan_->list.sources[piece.source];
    if (prefetch_) {
      prefetch_->wait(source, piece.offset + piece.length, stop_.get_token());
    }
    source.read(buffer + at, piece.length, piece.offset);
    at += piece.length;
  }
}

}  // namespace ortmulti
