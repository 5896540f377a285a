#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <future>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "core/cuda/copies.hpp"
#include "core/cuda/memory.hpp"
#include "failing_threads.hpp"
#include "fake_cuda.hpp"
#include "test_support.hpp"

namespace ortmulti::tests {
namespace {

TEST(SharedCopy, EveryPieceIsTakenOnceByPartsOfDifferentNumbers) {
  for (int round = 0; round < 200; ++round) {
    std::vector<std::atomic<int>> taken(500);
    std::vector<std::atomic<int>> numbers(8);
    std::atomic<std::size_t> next{0};
    share_copy(3, [&](int number) {
      ++numbers.at(static_cast<std::size_t>(number));
      for (std::size_t piece = next++; piece < taken.size(); piece = next++) {
        ++taken[piece];
      }
    });
    for (const auto& count : taken) {
      ASSERT_EQ(count, 1);
    }
    EXPECT_EQ(numbers[0], 1);
    for (const auto& count : numbers) {
      EXPECT_LE(count, 1);
    }
  }
}

// ctest runs each test in a process of its own: the helpers are the process's.
TEST(SharedCopy, WithoutThreadsTheCallerDoesItAllAndTheNextCallTriesAgain) {
  if (max_copy_helpers() == 0) {
    GTEST_SKIP() << "one core";
  }
  {
    const NoThreads none;
    share_copy(3, [](int number) { EXPECT_EQ(number, 0); });
  }
  std::promise<void> helped;
  share_copy(1, [&](int number) {
    if (number == 0) {
      EXPECT_EQ(helped.get_future().wait_for(std::chrono::seconds(60)), std::future_status::ready);
    } else {
      helped.set_value();
    }
  });
}

TEST(SharedCopy, SeveralThreadsShareThem) {
  in_threads(6, [](int) {
    for (int round = 0; round < 100; ++round) {
      std::atomic<int> next{0};
      std::atomic<int> sum{0};
      share_copy(3, [&](int) {
        for (int piece = next++; piece < 50; piece = next++) {
          sum += piece;
        }
      });
      EXPECT_EQ(sum, 49 * 50 / 2);
    }
  });
}

TEST(SharedCopy, GiveWhatAPartThrowsWhenAllHaveEnded) {
  std::atomic<int> inside{0};
  EXPECT_THROW(share_copy(3,
                          [&](int) {
                            ++inside;
                            std::this_thread::yield();
                            --inside;
                            throw std::runtime_error("no");
                          }),
               std::runtime_error);
  EXPECT_EQ(inside, 0);
}

constexpr std::size_t mebibyte = 1U << 20U;

std::string some_text(std::size_t size) {
  std::string text(size, '\0');
  for (std::size_t i = 0; i < size; ++i) {
    text[i] = static_cast<char>('a' + (i * 7 + i / 1000) % 26);
  }
  return text;
}

class StagedCopiesTest : public testing::Test {
 protected:
  StagedCopiesTest() { startup.make_current(0); }
  void TearDown() override { EXPECT_TRUE(cuda.misuses().empty()) << cuda.misuses().front(); }

  // NOLINTNEXTLINE(performance-no-int-to-ptr): the driver's addresses are numbers
  static void* pointer(const CudaMemory& memory) { return reinterpret_cast<void*>(memory.address()); }

  FakeCuda& cuda = FakeCuda::reset();
  CudaDriver driver = FakeCuda::table();
  CudaStartup startup{&driver, ""};
};

TEST_F(StagedCopiesTest, CopyAnySize) {
  StagedCopies copies(startup, 0);
  for (const std::size_t size : {std::size_t{0}, std::size_t{1}, 2 * mebibyte - 1, 2 * mebibyte, 2 * mebibyte + 1,
                                 8 * mebibyte, 19 * mebibyte + 5}) {
    const CudaMemory memory(startup, 0, size, "it takes");
    const std::string text = some_text(size);
    std::string source = text;
    copies.from_host(pointer(memory), source.data(), size);
    source.assign(size, '-');  // what was given may change on return
    copies.wait();
    EXPECT_EQ(cuda.read(memory.address(), size), text);
    std::string back(size, '?');
    copies.to_host(back.data(), pointer(memory), size);
    EXPECT_EQ(back, text);
  }
}

TEST_F(StagedCopiesTest, WhatIsSentAndFetchedInTurnsDoesNotMix) {
  StagedCopies copies(startup, 0);
  const std::size_t size = 5 * mebibyte;
  const CudaMemory one(startup, 0, size, "it takes");
  const CudaMemory other(startup, 0, size, "it takes");
  const std::string first = some_text(size);
  const std::string second(size, 'z');
  std::string back(size, '?');
  copies.from_host(pointer(one), first.data(), size);
  copies.from_host(pointer(other), second.data(), size);
  copies.to_host(back.data(), pointer(one), size);
  EXPECT_EQ(back, first);
  copies.to_host(back.data(), pointer(other), size);
  EXPECT_EQ(back, second);
}

TEST_F(StagedCopiesTest, PinnedMemoryNeedsNoBuffer) {
  StagedCopies copies(startup, 0);
  const std::string text = some_text(5 * mebibyte);
  PinnedBuffers pinned(text.size(), 1);
  pinned.pin(startup, "cuda:0");
  std::ranges::copy(text, pinned[0]);
  const CudaMemory memory(startup, 0, text.size(), "it takes");
  copies.from_pinned(pointer(memory), pinned[0], text.size());
  copies.wait();
  EXPECT_EQ(cuda.read(memory.address(), text.size()), text);
}

TEST_F(StagedCopiesTest, CopyBetweenAndOnDevices) {
  startup.make_current(1);
  const CudaMemory there(startup, 1, 4, "it takes");
  startup.make_current(0);
  StagedCopies copies(startup, 0);
  const CudaMemory here(startup, 0, 4, "it takes");
  const CudaMemory again(startup, 0, 4, "it takes");
  copy_to_device(startup, 1, pointer(there), "abcd", 4);
  copies.from_device(pointer(here), 1, pointer(there), 4);
  copies.from_device(pointer(again), 0, pointer(here), 4);
  copies.wait();
  EXPECT_EQ(cuda.read(again.address(), 4), "abcd");
  EXPECT_EQ(FakeCuda::current(), 0);
}

TEST_F(StagedCopiesTest, LeaveNothing) {
  {
    const StagedCopies copies(startup, 0);
  }
  EXPECT_TRUE(cuda.live().nothing());
  for (const char* function : {"cuMemHostRegister", "cuStreamCreate", "cuEventCreate"}) {
    cuda.failing[function] = CUDA_ERROR_OUT_OF_MEMORY;
    EXPECT_TRUE(throws(ErrorKind::out_of_memory, {"cuda:0"}, [&] { const StagedCopies copies(startup, 0); }));
    cuda.failing.clear();
    EXPECT_TRUE(cuda.live().nothing()) << function;
  }
}

TEST_F(StagedCopiesTest, SayWhereACopyFailed) {
  StagedCopies copies(startup, 0);
  const CudaMemory memory(startup, 0, 4, "it takes");
  cuda.on_copy = [](const FakeCuda::Copy& /*copy*/) { return CUDA_ERROR_ILLEGAL_ADDRESS; };
  EXPECT_TRUE(throws(ErrorKind::device, {"inputs and outputs on cuda:0"}, [&] {
    copies.from_host(pointer(memory), "abcd", 4);
    copies.wait();
  }));
  cuda.on_copy = nullptr;
  cuda.repair();
}

}  // namespace
}  // namespace ortmulti::tests
