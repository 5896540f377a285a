// This file is part of builds with ORTMULTI_CHECK_LOCKS only. It aborts the process if a thread breaks these rules:
//
//   1. A thread that holds the GIL never waits for a lock of the core.
//   2. A thread that holds a lock of the core never asks for the GIL. So no Python object is freed under a lock.
//
// The linker redirects these calls of our own object files, the core's and pybind11's templates included (--wrap, see
// CMakeLists.txt), which use no other functions for locks. Python, ONNX Runtime and the C++ library keep the C
// library's functions. A wait for a condition needs no check of its own: the lock was taken before it.
//
// One exception: the check begins when the module's import ends. Until then pybind11 takes a lock of its own.

#include <Python.h>
#include <execinfo.h>
#include <pthread.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>

#include "bindings/gil.hpp"

namespace {

std::atomic<bool> checking{false};
thread_local int held = 0;  // locks of the core, by this thread

// The Python stack follows where faulthandler is on, as in pytest. addr2line -Cife names the lines.
[[noreturn]] void stop(const char* what, const void* lock) {
  static_cast<void>(std::fprintf(stderr, "\nortmulti: %s (lock %p)\n", what, lock));
  std::array<void*, 64> frames{};
  backtrace_symbols_fd(frames.data(), backtrace(frames.data(), frames.size()), STDERR_FILENO);
  std::abort();
}

template <typename Lock>
int take(int (*real)(Lock*), Lock* lock) {
#ifndef Py_GIL_DISABLED
  if (checking.load() && Py_IsInitialized() != 0 && ortmulti::bindings::has_gil()) {
    stop("a thread that holds the GIL takes a lock of the core", lock);
  }
#endif
  const int result = real(lock);
  held += result == 0 ? 1 : 0;
  return result;
}

template <typename Lock>
int release(int (*real)(Lock*), Lock* lock) {
  --held;
  return real(lock);
}

void check_none_held() {
  if (held != 0) {
    stop("a thread that holds a lock of the core asks for the GIL", nullptr);
  }
}

}  // namespace

namespace ortmulti::bindings {
void check_locks();  // module.cpp's
void check_locks() { checking.store(true); }
}  // namespace ortmulti::bindings

// NOLINTBEGIN(bugprone-reserved-identifier,readability-identifier-naming): the linker's names
extern "C" {
int __real_pthread_mutex_lock(pthread_mutex_t* lock);
int __real_pthread_mutex_unlock(pthread_mutex_t* lock);
int __real_pthread_rwlock_rdlock(pthread_rwlock_t* lock);
int __real_pthread_rwlock_tryrdlock(pthread_rwlock_t* lock);
int __real_pthread_rwlock_wrlock(pthread_rwlock_t* lock);
int __real_pthread_rwlock_trywrlock(pthread_rwlock_t* lock);
int __real_pthread_rwlock_unlock(pthread_rwlock_t* lock);
PyGILState_STATE __real_PyGILState_Ensure();
void __real_PyEval_AcquireThread(PyThreadState* state);
void __real_PyEval_RestoreThread(PyThreadState* state);

int __wrap_pthread_mutex_lock(pthread_mutex_t* lock) { return take(__real_pthread_mutex_lock, lock); }
int __wrap_pthread_mutex_unlock(pthread_mutex_t* lock) { return release(__real_pthread_mutex_unlock, lock); }
int __wrap_pthread_rwlock_rdlock(pthread_rwlock_t* lock) { return take(__real_pthread_rwlock_rdlock, lock); }
int __wrap_pthread_rwlock_tryrdlock(pthread_rwlock_t* lock) { return take(__real_pthread_rwlock_tryrdlock, lock); }
int __wrap_pthread_rwlock_wrlock(pthread_rwlock_t* lock) { return take(__real_pthread_rwlock_wrlock, lock); }
int __wrap_pthread_rwlock_trywrlock(pthread_rwlock_t* lock) { return take(__real_pthread_rwlock_trywrlock, lock); }
int __wrap_pthread_rwlock_unlock(pthread_rwlock_t* lock) { return release(__real_pthread_rwlock_unlock, lock); }

PyGILState_STATE __wrap_PyGILState_Ensure() {
  check_none_held();
  return __real_PyGILState_Ensure();
}

void __wrap_PyEval_AcquireThread(PyThreadState* state) {
  check_none_held();
  __real_PyEval_AcquireThread(state);
}

void __wrap_PyEval_RestoreThread(PyThreadState* state) {
  check_none_held();
  __real_PyEval_RestoreThread(state);
}
}
// NOLINTEND(bugprone-reserved-identifier,readability-identifier-naming)
