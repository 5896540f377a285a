#include "core/base/fork.hpp"

#include <pthread.h>

#include <array>
#include <stdexcept>

namespace ortmulti {
namespace {

std::atomic<unsigned> generation{0};

constexpr std::size_t max_handlers = 32;
std::array<std::atomic<void (*)()>, max_handlers> handlers{};

void child_after_fork() {
  generation.fetch_add(1, std::memory_order_relaxed);
  for (const auto& handler : handlers) {
    if (void (*call)() = handler.load(std::memory_order_acquire); call != nullptr) {
      call();
    }
  }
}

void watch_forks() {
  static const int result = pthread_atfork(nullptr, nullptr, child_after_fork);
  if (result != 0) {
    throw std::runtime_error("pthread_atfork failed");
  }
}

}  // namespace

unsigned fork_generation() {
  watch_forks();  // whoever remembers a number wants to see the next one
  return generation.load(std::memory_order_relaxed);
}

void on_fork_in_child(void (*handler)()) {
  watch_forks();
  for (auto& slot : handlers) {
    void (*expected)() = nullptr;
    if (slot.compare_exchange_strong(expected, handler)) {
      return;
    }
  }
  throw std::logic_error("too many fork handlers");
}

}  // namespace ortmulti
