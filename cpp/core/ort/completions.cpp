#include "core/ort/completions.hpp"

#include <utility>

#include "core/base/fork.hpp"

namespace ortmulti {

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

Completions& completions() { return one_of_process<Completions>(); }

}  // namespace ortmulti
