#pragma once

#include <atomic>

namespace ortmulti {

/// Counts the forks between the first process and this one: what was started under another number belongs to a
/// parent process, whose threads and CUDA contexts this process does not have. Forks before the first call do not
/// count.
unsigned fork_generation();

/// Calls `handler` in every forked child, before fork() returns there. Only a handful of handlers: one a module.
/// They may not wait for locks, since the thread that held one may not exist in the child.
void on_fork_in_child(void (*handler)());

/// The process's single `T`, made at the first call and never freed. A forked child has a new one: a thread of the
/// parent may hold the lock of the old one.
template <typename T>
T& process_singleton() {
  static std::atomic<T*> one{nullptr};
  static const bool made = [] {
    constexpr auto make = [] { one.store(new T()); };  // NOLINT(cppcoreguidelines-owning-memory)
    make();
    on_fork_in_child(make);
    return true;
  }();
  static_cast<void>(made);
  return *one.load();
}

}  // namespace ortmulti
