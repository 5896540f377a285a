#include "core/create/creation.hpp"

#include <algorithm>
#include <system_error>
#include <utility>

#include "core/base/error.hpp"
#include "core/base/fork.hpp"
#include "core/create/preload.hpp"
#include "core/memory/device_memory.hpp"
#include "core/ort/api_compat.hpp"
#include "core/ort/operators.hpp"
#include "core/weights/store.hpp"

namespace ortmulti {
namespace {

LeftThreads& cancelled_threads() { return process_singleton<LeftThreads>(); }

// Closes the sessions that were created; the others are null.
void close_all(const std::vector<std::shared_ptr<Session>>& sessions) {
  for (const auto& session : sessions) {
    if (session) {
      session->close();
    }
  }
}

}  // namespace

std::string why_in_turn(const std::string& onnxruntime_version) {
  constexpr int first_tried = 30;  // with later releases the GPU tests try it again
  if (ort_api_compat::is_since(onnxruntime_version, first_tried)) {
    return "";
  }
  return "ONNX Runtime " + onnxruntime_version + " is older than 1." + std::to_string(first_tried) +
         ", and with older releases it was not tried to create sessions on one GPU at the same time; serialize='none' "
         "does it";
}

Creation::Creation(OnnxRuntime& runtime, CreationRequest request)
    : runtime_(runtime),
      request_(std::move(request)),
      timeline_(request_.timeline ? request_.timeline : std::make_shared<Timeline>()),
      sessions_(request_.sessions.size()) {
  for (auto& providers : request_.sessions) {
    providers.insert(providers.begin(), request_.options.providers.begin(), request_.options.providers.end());
    devices_.push_back(device_of(providers));
    turns_[to_string(devices_.back())];
    memory_checks_[to_string(devices_.back())];
  }
  turns_["all"];
  bool any_follows = false;
  bool any_shares_gpu = false;
  for (std::size_t i = 0; i < size(); ++i) {
    any_follows = any_follows || follows(i);
    any_shares_gpu = any_shares_gpu || (devices_[i].is_cuda() && !is_first(i));
  }
  if (const std::string reason = why_in_turn(runtime_.version());
      any_shares_gpu && request_.serialize == Serialize::automatic && !reason.empty()) {
    timeline_->note("created in turn: " + reason);
  }
  if (const std::string reason = any_follows ? why_not_one_session() : ""; !reason.empty()) {
    request_.one_session_each = false;
    timeline_->note("not shared: " + reason);
  }
  if (!request_.weights) {
    return;
  }
  std::vector<int> gpus;
  for (const Device& device : devices_) {
    request_.weights->plan->check_device(device);
    if (device.is_cuda() && std::ranges::find(gpus, device.index) == gpus.end()) {
      gpus.push_back(device.index);
    }
  }
  if (!gpus.empty()) {
    loader_ = std::make_unique<WeightLoader>(CudaStartup::instance(), *request_.weights, std::move(gpus), timeline_,
                                             request_.keep_going);
  }
}

// The last reference may be that of one of its own threads, which cannot join itself.
Creation::~Creation() {
  if (!threads_.empty()) {
    leave_threads();
  }
}

std::shared_ptr<Creation> Creation::start(OnnxRuntime& runtime, CreationRequest request) {
  if (!request.options.use_per_session_threads) {
    runtime.check_global_thread_pools();
  }
  if (request.options.threads) {
    static_cast<void>(cpus_for(*request.options.threads));  // throws for what cannot be
  }
  auto creation = std::make_shared<Creation>(runtime, std::move(request));
  try {
    creation->start_threads();
  } catch (...) {
    const std::size_t started = creation->threads_.size();
    creation->cancel();
    try {
      throw;
    } catch (const std::system_error& error) {
      throw Error(ErrorKind::runtime_exception,
                  "cannot start a thread for each of " + std::to_string(creation->size()) +
                      " sessions: the system allowed " + std::to_string(started) + " (" + error.what() + ")");
    }
  }
  return creation;
}

void Creation::release_hold() {
  if (request_.hold) {
    request_.hold->release();
  }
}

void Creation::start_threads() {
  const auto self = shared_from_this();
  if (request_.serialize == Serialize::all) {
    release_hold();  // one that waits for its context may have the turn
  }
  if (loader_) {
    CudaStartup::instance().begin_contexts(loader_->devices());
    for (std::size_t i = 0; i < loader_->devices().size(); ++i) {
      threads_.push_back(LeftThreads::start([self, i] { self->loader_->bring_up(i); }));
    }
  }
  for (std::size_t i = 0; i < size(); ++i) {
    if (!follows(i)) {
      threads_.push_back(LeftThreads::start([self, i] { self->create(i); }));
    }
  }
  for (std::size_t i = 0; request_.preload && i < size(); ++i) {
    if (devices_[i].is_cuda() && is_first(i)) {
      preload(devices_[i]);
    }
  }
}

void Creation::preload(const Device& device) {
  // A preload may last for longer than the sessions, whose weights it would keep.
  const std::weak_ptr<Creation> creation = weak_from_this();
  Preload::Load load;
  load.timeline = timeline_;
  load.wanted = [creation] {
    const auto self = creation.lock();
    return self && !self->stop_.stop_requested();
  };
  load.before_freeing = [creation, place = device.index] {
    if (const auto self = creation.lock(); self && self->loader_) {
      static_cast<void>(self->loader_->wait_until_filled(self->loader_->index_of(place)));
    }
  };
  Preload(model_index()).begin(runtime_, device.index, turn(device) == nullptr, load);
}

bool Creation::is_first(std::size_t index) const {
  const auto place = devices_.begin() + static_cast<std::ptrdiff_t>(index);
  return std::find(devices_.begin(), place, *place) == place;
}

bool Creation::follows(std::size_t index) const {
  return request_.one_session_each && !devices_[index].is_cuda() && !is_first(index);
}

bool Creation::made_with(std::size_t index, std::size_t created) const {
  return index == created || (follows(index) && devices_[index] == devices_[created]);
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
  const bool free = !device.is_cuda() || why_in_turn(runtime_.version()).empty();
  return free ? nullptr : &turns_.at(to_string(device));
}

std::shared_ptr<Session> Creation::create_session(std::size_t index) {
  const Device& device = devices_[index];
  const auto make = [&](const Session::Weights& weights) {
    SessionOptions options = options_for(device);
    if (index == 0 && !request_.save_optimized.empty()) {
      options.optimized_model_filepath = request_.save_optimized;
    }
    const auto found = request_.on_devices.find(to_string(device));
    ModelSource model = request_.model;
    if (found != request_.on_devices.end()) {
      if (!found->second.model.empty()) {
        model = {found->second.model};
      }
      if (is_first(index)) {
        for (const auto& [key, value] : found->second.config_entries) {
          options.config_entries[key] = value;
        }
      }
    }
    return std::make_shared<Session>(runtime_, model, options, request_.sessions[index], timeline_.get(), weights);
  };
  if (!request_.weights) {
    if (device.is_cuda()) {
      std::call_once(memory_checks_.at(to_string(device)), [&] { check_memory(device); });
    }
    return make({});
  }
  std::shared_ptr<Session> session;
  if (!device.is_cuda()) {
    session = make([this] {
      std::call_once(host_weights_made_, [this] {
        host_weights_ = std::make_shared<HostWeightStore>(request_.weights->plan->list, std::move(host_memory_));
      });
      return host_weights_;
    });
  } else {
    const std::size_t place = loader_->index_of(device.index);
    // Where nothing reads the weights before the first run, the session is created while they are still on their way.
    // Which operators an optimization makes is not known before.
    const bool optimizes = request_.options.graph_optimization_level != ORT_DISABLE_ALL;
    const bool early = !request_.weights->fill || (!optimizes && !reads_weights_when_created(model_index().operators));
    WeightStore::Hold awake;  // weights of a base may go to sleep meanwhile
    session = make([&] {
      const auto store = loader_->allocated(place);
      if (!early) {
        loader_->wait_filled(place);
        awake = store->hold();
      }
      return store;
    });
    loader_->wait_filled(place);
  }
  for (const auto& source : request_.weights->plan->list.sources) {
    source->check();  // ONNX Runtime read the graph after they were listed
  }
  return session;
}

void Creation::create(std::size_t index) {
  std::vector<std::shared_ptr<Session>> made;
  std::exception_ptr error;
  try {
    const Device& device = devices_[index];
    if (request_.weights && !device.is_cuda()) {  // before a lock is taken: a source may need Python's
      std::call_once(host_weights_read_,
                     [this] { host_memory_ = in_memory(request_.weights->plan->list, stop_.get_token()); });
    }
    std::unique_lock<std::mutex> my_turn;
    if (std::mutex* lock = turn(device); lock != nullptr) {
      const ScopedSpan span(timeline_.get(), "wait for turn", to_string(device));
      my_turn = std::unique_lock(*lock);
    }
    if (!stop_.stop_requested()) {
      made.resize(size());
      made[index] = with_retries({device_memory::lack(device)}, [&] { return create_session(index); });
      register_for_shutdown(made[index]);
      for (std::size_t i = 0; i < size(); ++i) {
        if (made_with(i, index) && i != index) {
          made[i] = made[index]->share();
          register_for_shutdown(made[i]);
        }
      }
    }
  } catch (...) {
    made.clear();
    error = std::current_exception();
  }
  finish(index, std::move(made), error);
}

void Creation::finish(std::size_t index, std::vector<std::shared_ptr<Session>> made, const std::exception_ptr& error) {
  if (error) {
    release_hold();  // it may be the first one's
  }
  if (error && loader_) {
    if (request_.keep_going && devices_[index].is_cuda()) {
      loader_->want(loader_->index_of(devices_[index].index));  // its thread may wait for that
    } else {
      loader_->stop();
    }
  }
  std::unique_lock lock(mutex_);
  if (cancelled_) {
    lock.unlock();
    close_all(made);
    made.clear();
    lock.lock();
  }
  if (error && !request_.keep_going) {
    stop_.request_stop();
  }
  error_ = error_ ? error_ : error;
  for (std::size_t i = 0; i < size(); ++i) {
    if (!made_with(i, index)) {
      continue;
    }
    if (!made.empty()) {
      newly_ready_.push_back(i);
      ++made_;
      sessions_[i] = std::move(made[i]);
    } else if (error && request_.keep_going) {
      newly_failed_.push_back({i, error});
    }
    ++finished_;
  }
  progress_.notify_all();
}

Creation::Progress Creation::wait(std::chrono::milliseconds timeout) {
  std::unique_lock lock(mutex_);
  progress_.wait_for(lock, timeout,
                     [this] { return finished_ == size() || !newly_ready_.empty() || !newly_failed_.empty(); });
  return {std::exchange(newly_ready_, {}), std::exchange(newly_failed_, {}), loader_ ? loader_->copied_bytes() : 0,
          loader_ ? loader_->total_bytes() : 0, finished_ == size()};
}

void Creation::cancel() {
  std::vector<std::shared_ptr<Session>> ready;
  {
    const std::lock_guard lock(mutex_);
    stop_.request_stop();
    cancelled_ = true;
    ready.swap(sessions_);
    sessions_.resize(ready.size());
  }
  release_hold();
  if (loader_) {
    loader_->stop();
  } else if (request_.weights) {
    interrupt(request_.weights->plan->list);
  }
  close_all(ready);
  leave_threads();
}

std::shared_ptr<Session> Creation::take(std::size_t index) {
  const std::lock_guard lock(mutex_);
  return index < sessions_.size() ? std::move(sessions_[index]) : nullptr;
}

void Creation::leave_threads() {
  for (LeftThreads::Thread& thread : std::exchange(threads_, {})) {
    cancelled_threads().leave(std::move(thread));
  }
}

std::vector<std::shared_ptr<Session>> Creation::take() {
  if (cancelled_) {
    throw Error(ErrorKind::closed, "the creation of sessions was cancelled");
  }
  threads_.clear();  // joins them
  if (error_ && (!request_.keep_going || made_ == 0)) {
    close_all(std::exchange(sessions_, {}));
    std::rethrow_exception(error_);
  }
  return std::move(sessions_);
}

void join_cancelled_creations() { cancelled_threads().join(); }

}  // namespace ortmulti
