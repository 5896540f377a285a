#include "failing_allocations.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <exception>
#include <new>
#include <string>

namespace {

constexpr int never = -1;
thread_local int until_failure = never;

void* allocate(std::size_t bytes) noexcept {
  if (until_failure == 1) {
    until_failure = never;  // what tells of it may allocate
    return nullptr;
  }
  if (until_failure != never) {
    --until_failure;
  }
  // NOLINTNEXTLINE(cppcoreguidelines-no-malloc,cppcoreguidelines-owning-memory): it is what new consists of
  return std::malloc(bytes == 0 ? 1 : bytes);
}

void* allocate_or_throw(std::size_t bytes) {
  if (void* memory = allocate(bytes)) {
    return memory;
  }
  throw std::bad_alloc();
}

// NOLINTNEXTLINE(cppcoreguidelines-no-malloc,cppcoreguidelines-owning-memory): as above
void release(void* memory) noexcept { std::free(memory); }

}  // namespace

// Of the whole program: every form without an alignment, since a sanitizer's own are not to be freed here.
void* operator new(std::size_t bytes) { return allocate_or_throw(bytes); }
void* operator new[](std::size_t bytes) { return allocate_or_throw(bytes); }
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept { return allocate(bytes); }
void* operator new[](std::size_t bytes, const std::nothrow_t&) noexcept { return allocate(bytes); }
void operator delete(void* memory) noexcept { release(memory); }
void operator delete[](void* memory) noexcept { release(memory); }
void operator delete(void* memory, std::size_t) noexcept { release(memory); }
void operator delete[](void* memory, std::size_t) noexcept { release(memory); }
void operator delete(void* memory, const std::nothrow_t&) noexcept { release(memory); }
void operator delete[](void* memory, const std::nothrow_t&) noexcept { release(memory); }

namespace ortmulti::tests {

int with_each_allocation_failing(const std::function<void()>& prepare, const std::function<void()>& call,
                                 const std::function<void()>& check) {
  constexpr int most = 1000;
  for (int failed = 0; failed < most; ++failed) {
    prepare();
    until_failure = failed + 1;
    try {
      call();
    } catch (const std::exception& error) {  // ONNX Runtime's own has the same text
      EXPECT_NE(std::string(error.what()).find("bad_alloc"), std::string::npos) << error.what();
      check();
      continue;
    }
    const bool needed_all = until_failure == never;
    until_failure = never;
    if (!needed_all) {
      return failed;
    }
    ADD_FAILURE() << "allocation " << failed + 1 << " failed, and nothing was thrown";
    check();
  }
  ADD_FAILURE() << "it needs more than " << most << " allocations";
  return most;
}

}  // namespace ortmulti::tests
