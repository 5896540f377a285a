#include <gtest/gtest.h>

#include <set>
#include <stdexcept>
#include <thread>

#include "core/base/serial_thread.hpp"
#include "test_support.hpp"

namespace ortmulti::tests {
namespace {

TEST(SerialThread, DoesEverythingInOneThread) {
  SerialThread own;
  std::set<std::thread::id> ids;
  in_threads(4, [&](int) {
    for (int i = 0; i < 100; ++i) {
      own.call([&] { ids.insert(std::this_thread::get_id()); });  // one by one, so that they need no lock
    }
  });
  EXPECT_EQ(ids.size(), 1U);
  EXPECT_EQ(ids.count(std::this_thread::get_id()), 0U);
}

TEST(SerialThread, GivesWhatTheWorkThrows) {
  SerialThread own;
  EXPECT_THROW(own.call([] { throw std::runtime_error("no"); }), std::runtime_error);
  bool done = false;
  own.call([&done] { done = true; });
  EXPECT_TRUE(done);
}

}  // namespace
}  // namespace ortmulti::tests
