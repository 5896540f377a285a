#include "core/completions.hpp"

#include <atomic>
#include <utility>

#include "core/process_fork.hpp"

namespace ortmulti {
namespace {

std::atomic<Completions*> queue{nullptr};

// Never freed: sessions that the process's end closes may still push.
void new_queue() { queue.store(new Completions()); }  // NOLINT(cppcoreguidelines-owning-memory)

}  // namespace

void Completions::push(Completion completion) {
  {
    const std::lock_guard lock(mutex_);
    waiting_.push_back(std::move(completion));
  }
  filled_.notify_one();
}

std::vector<Completions::Completion> Completions::take() {
  std::unique_lock lock(mutex_);
  filled_.wait(lock, [this] { return closed_ || !waiting_.empty(); });
  return std::exchange(waiting_, {});
}

void Completions::close() {
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
  }
  filled_.notify_all();
}

void Completions::open() {
  const std::lock_guard lock(mutex_);
  closed_ = false;
}

Completions& completions() {
  static const bool watched = [] {
    new_queue();
    on_fork_in_child(new_queue);  // another thread of the parent may have held the old one's lock
    return true;
  }();
  static_cast<void>(watched);
  return *queue.load();
}

}  // namespace ortmulti
