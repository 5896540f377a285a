#include <gtest/gtest.h>

#include <stdexcept>

#include "core/base/fork.hpp"
#include "test_support.hpp"

namespace ortmulti::tests {
namespace {

int calls = 0;
void count_call() { ++calls; }

// Each in a process of its own, where no other part of the core has asked for forks to be watched.

TEST(ForkDeathTest, IsCountedWithoutAnyHandler) {
  expect_in_own_process([] {
    const unsigned before = fork_generation();
    const bool good = in_forked_child([before] {
      const bool child = fork_generation() == before + 1;
      return child && in_forked_child([before] { return fork_generation() == before + 2; });
    });
    return good && fork_generation() == before;
  });
}

TEST(ForkDeathTest, CallsTheHandlersInTheChildAlone) {
  expect_in_own_process([] {
    on_fork_in_child(count_call);
    on_fork_in_child(count_call);
    const bool good = in_forked_child([] { return calls == 2; });
    return good && calls == 0;
  });
}

TEST(ForkDeathTest, RefusesMoreHandlersThanItHasRoomFor) {
  expect_in_own_process([] {
    int taken = 0;
    try {
      for (; taken < 1000; ++taken) {
        on_fork_in_child(count_call);
      }
    } catch (const std::logic_error&) {
      return taken >= 3;  // three parts of the core need one
    }
    return false;
  });
}

}  // namespace
}  // namespace ortmulti::tests
