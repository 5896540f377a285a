#include "failing_threads.hpp"

#include <dlfcn.h>
#include <pthread.h>

#include <cerrno>

namespace {

thread_local bool no_threads = false;

}  // namespace

// Of the whole program, in the place of the C library's.
// NOLINTNEXTLINE(readability-inconsistent-declaration-parameter-name): the C library's are reserved names
extern "C" __attribute__((visibility("default"))) int pthread_create(pthread_t* thread,
                                                                     const pthread_attr_t* attributes,
                                                                     void* (*body)(void*), void* argument) noexcept {
  if (no_threads) {
    return EAGAIN;
  }
  static const auto real = reinterpret_cast<decltype(&pthread_create)>(dlsym(RTLD_NEXT, "pthread_create"));
  return real(thread, attributes, body, argument);
}

namespace ortmulti::tests {

NoThreads::NoThreads() { no_threads = true; }
NoThreads::~NoThreads() { no_threads = false; }

}  // namespace ortmulti::tests
