// Integer divisions that x86-64 ends a process for. Each test in a process of its own, which keeps the handler.
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdint>
#include <limits>
#include <utility>

#include "core/serve/division.hpp"
#include "test_support.hpp"

#if defined(__linux__) && defined(__x86_64__)

namespace ortmulti::tests {
namespace {

using serve::allow_division_overflow;

// Divides high:low by `divisor`, which r10 and, beside fixed memory, rsi, r12 and r13 point to; -300 is in rcx and r9,
// 0 in r8.
template <typename Number>
using Divide = std::pair<Number, Number> (*)(Number low, Number high, Number divisor);

#define ORTMULTI_DIVIDE(INSTRUCTION)                                                                    \
  [](Number low, Number high, Number divisor) {                                                         \
    static Number fixed;                                                                                \
    fixed = divisor;                                                                                    \
    asm volatile(                                                                                       \
        "mov %%rsi, %%r12\n\tmov %%rsi, %%r13\n\tmov %%rcx, %%r9\n\tmov %q[divisor], %%r10\n\tmov $0, " \
        "%%r8\n\t" INSTRUCTION                                                                          \
        : "+a"(low), "+d"(high)                                                                         \
        : [divisor] "D"(divisor), "S"(&divisor), "c"(std::int64_t{-300}), [fixed] "m"(fixed)            \
        : "r8", "r9", "r10", "r12", "r13", "memory", "cc");                                             \
    return std::pair(low, high);                                                                        \
  }

#define ORTMULTI_DIVIDE_ALL(SUFFIX, HIGH_REGISTER)                  \
  std::to_array<Divide<Number>>({                                   \
      ORTMULTI_DIVIDE("idiv" SUFFIX " %[divisor]"),                 \
      ORTMULTI_DIVIDE("idiv" SUFFIX " " HIGH_REGISTER),             \
      ORTMULTI_DIVIDE("idiv" SUFFIX " (%%rsi)"),                    \
      ORTMULTI_DIVIDE("idiv" SUFFIX " (%%r12)"),                    \
      ORTMULTI_DIVIDE("idiv" SUFFIX " (%%r13)"),                    \
      ORTMULTI_DIVIDE("idiv" SUFFIX " 1200(%%rsi,%%rcx,4)"),        \
      ORTMULTI_DIVIDE("idiv" SUFFIX " 1200(%%r13,%%r9,4)"),         \
      ORTMULTI_DIVIDE("add $8, %%r13\n\tidiv" SUFFIX " -8(%%r13)"), \
      ORTMULTI_DIVIDE("idiv" SUFFIX " (,%%rsi,1)"),                 \
      ORTMULTI_DIVIDE("idiv" SUFFIX " (%%r8,%%r12,1)"),             \
      ORTMULTI_DIVIDE("idiv" SUFFIX " 600(%%rsi,%%rcx,2)"),         \
      ORTMULTI_DIVIDE("idiv" SUFFIX " %[fixed]"),                   \
  })

template <typename Number>
auto divisions() {
  if constexpr (sizeof(Number) == sizeof(std::int64_t)) {
    return ORTMULTI_DIVIDE_ALL("q", "%%r10");
  } else {
    return ORTMULTI_DIVIDE_ALL("l", "%%r10d");
  }
}

template <typename Number>
bool all_divide() {
  constexpr Number smallest = std::numeric_limits<Number>::min();
  bool good = true;
  for (const Divide<Number> divide : divisions<Number>()) {
    good = good && divide(smallest, -1, -1) == std::pair<Number, Number>(smallest, 0);
    good = good && divide(smallest, -1, 10) == std::pair<Number, Number>(smallest / 10, smallest % 10);
    good = good && divide(7, 0, -1) == std::pair<Number, Number>(-7, 0);
  }
  return good;
}

// Exits with 0, if it returns, where all divisions went on.
template <typename Number>
void divide_after(void (*handler)(int), Number low, Number high, Number divisor, std::size_t form) {
  std::signal(SIGFPE, handler);
  allow_division_overflow();
  divisions<Number>()[form](low, high, divisor);
  _exit(0);
}

class DivisionDeathTest : public testing::Test {
 protected:
  void SetUp() override { GTEST_FLAG_SET(death_test_style, "threadsafe"); }

  static constexpr std::int32_t smallest = std::numeric_limits<std::int32_t>::min();
  static constexpr std::size_t in_register = 0, in_memory = 2;
};

TEST_F(DivisionDeathTest, OfTheSmallestNumberByMinusOneGivesIt) {
  expect_in_own_process([] {
    allow_division_overflow();
    allow_division_overflow();  // which is no handler of its own
    return all_divide<std::int32_t>() && all_divide<std::int64_t>();
  });
}

TEST_F(DivisionDeathTest, OfTheSmallestNumberEndsAProcessWithoutIt) {
  EXPECT_EXIT((std::signal(SIGFPE, SIG_DFL), all_divide<std::int32_t>()), testing::KilledBySignal(SIGFPE), "");
}

TEST_F(DivisionDeathTest, ByZeroEndsTheProcess) {
  for (const std::size_t form : {in_register, in_memory}) {
    for (const auto handler : {SIG_DFL, SIG_IGN}) {
      EXPECT_EXIT(divide_after<std::int32_t>(handler, smallest, -1, 0, form), testing::KilledBySignal(SIGFPE), "");
      EXPECT_EXIT(divide_after<std::int64_t>(handler, 1, 0, 0, form), testing::KilledBySignal(SIGFPE), "");
    }
  }
}

TEST_F(DivisionDeathTest, WithAnotherQuotientThatIsTooLargeEndsTheProcess) {
  EXPECT_EXIT(divide_after<std::int32_t>(SIG_DFL, 0, 5, 2, in_register), testing::KilledBySignal(SIGFPE), "");
  EXPECT_EXIT(divide_after<std::int32_t>(SIG_DFL, 0, 5, -1, in_register), testing::KilledBySignal(SIGFPE), "");
}

TEST_F(DivisionDeathTest, ByZeroGoesToTheHandlerThatWasThere) {
  EXPECT_EXIT(divide_after<std::int32_t>([](int) { _exit(3); }, 1, 0, 0, in_register), testing::ExitedWithCode(3), "");
  const auto with_facts = [] {
    struct sigaction theirs{};
    theirs.sa_flags = SA_SIGINFO;
    theirs.sa_sigaction = [](int, siginfo_t* info, void*) { _exit(info->si_code == FPE_INTDIV ? 4 : 5); };
    sigaction(SIGFPE, &theirs, nullptr);
    allow_division_overflow();
    divisions<std::int32_t>()[in_register](1, 0, 0);
  };
  EXPECT_EXIT(with_facts(), testing::ExitedWithCode(4), "");
}

TEST_F(DivisionDeathTest, ASignalThatWasSentDoesWhatItDid) {
  const auto sent = [](void (*handler)(int)) {
    std::signal(SIGFPE, handler);
    allow_division_overflow();
    raise(SIGFPE);
    _exit(0);
  };
  EXPECT_EXIT(sent(SIG_DFL), testing::KilledBySignal(SIGFPE), "");
  EXPECT_EXIT(sent(SIG_IGN), testing::ExitedWithCode(0), "");
  EXPECT_EXIT(sent([](int) {}), testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace ortmulti::tests

#endif
