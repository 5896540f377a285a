#include <gtest/gtest.h>
#include <unistd.h>

#include <stdexcept>

#include "core/base/fork.hpp"
#include "test_support.hpp"

namespace ortmulti::tests {
namespace {

int calls = 0;
void count_call() { ++calls; }

// In a process of its own, where no other part of the core has asked for forks to be watched.
class ForkDeathTest : public testing::Test {
 protected:
  ForkDeathTest() { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

TEST_F(ForkDeathTest, IsCountedWithoutAnyHandler) {
  EXPECT_EXIT(
      {
        const unsigned before = fork_generation();
        const bool good = in_forked_child([before] { return fork_generation() == before + 1; });
        _exit(good && fork_generation() == before ? 0 : 1);
      },
      testing::ExitedWithCode(0), "");
}

TEST_F(ForkDeathTest, OfAChildIsCountedFurther) {
  EXPECT_EXIT(
      {
        const unsigned before = fork_generation();
        const bool good = in_forked_child([before] {
          return static_cast<bool>(in_forked_child([before] { return fork_generation() == before + 2; }));
        });
        _exit(good ? 0 : 1);
      },
      testing::ExitedWithCode(0), "");
}

TEST_F(ForkDeathTest, CallsTheHandlersInTheChildAlone) {
  EXPECT_EXIT(
      {
        on_fork_in_child(count_call);
        on_fork_in_child(count_call);
        const bool good = in_forked_child([] { return calls == 2; });
        _exit(good && calls == 0 ? 0 : 1);
      },
      testing::ExitedWithCode(0), "");
}

TEST_F(ForkDeathTest, RefusesMoreHandlersThanItHasRoomFor) {
  EXPECT_EXIT(
      {
        int taken = 0;
        try {
          for (; taken < 1000; ++taken) {
            on_fork_in_child(count_call);
          }
        } catch (const std::logic_error&) {
          _exit(taken >= 3 ? 0 : 1);  // three parts of the core need one
        }
        _exit(2);
      },
      testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace ortmulti::tests
