// Runs of texts' tokens: rows of one table.

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <future>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "core/pool/token_rows.hpp"
#include "fake_runner.hpp"
#include "test_support.hpp"

namespace ortmulti::tests {
namespace {

using Pooling = TokenModel::Pooling;

class Rows : public TokenRows {
 public:
  using TokenRows::TokenRows;
  void wait() { done_.get_future().wait(); }

 protected:
  void complete() noexcept override { done_.set_value(); }

 private:
  std::promise<void> done_;
};

class TokenRowsOfPools : public PoolWithFakes {
 protected:
  std::shared_ptr<Rows> filled(const std::vector<std::size_t>& lengths, std::size_t skip = 0) {
    auto rows = std::make_shared<Rows>(std::make_shared<TokenModel>(model), skip);
    std::vector<TokenRows::Tokens> all;
    all.reserve(lengths.size());
    for (const std::size_t length : lengths) {
      all.push_back({std::vector<std::int64_t>(length, 7), {}});
    }
    rows->fill(std::move(all), [](Request&) {});
    return rows;
  }
  // Each token's vector is its place and twice that.
  static void answer(Request& request) {
    const std::int64_t length = request.inputs.values()[0].GetTensorTypeAndShapeInfo().GetShape()[1];
    Ort::Value y = tensor({1, length, 2});
    auto* vectors = y.GetTensorMutableData<float>();
    for (std::int64_t place = 0; place < length; ++place) {
      vectors[2 * place] = static_cast<float>(place);
      vectors[2 * place + 1] = static_cast<float>(2 * place);
    }
    request.outputs.push_back(std::move(y));
  }
  static std::vector<float> table_of(Rows& rows) {
    const auto table = rows.take_table();
    return {table.get(), table.get() + rows.count() * rows.width()};
  }

  TokenModel model{{{"input_ids", TokenModel::Kind::ids}}, "y", {Pooling::last, Pooling::mean}};
};

TEST_F(TokenRowsOfPools, EachTextHasItsRow) {
  add(Device::cpu())->action = answer;
  const auto rows = filled({3, 1, 5}, 2);
  EXPECT_TRUE(rows->submit(pool, std::nullopt));
  rows->wait();
  EXPECT_TRUE(rows->errors().empty());
  EXPECT_EQ(rows->width(), 4U);
  EXPECT_EQ(table_of(*rows), (std::vector<float>{2, 4, 2, 4, 0, 0, 0, 0, 4, 8, 3, 6}));
}

TEST_F(TokenRowsOfPools, OneThatFailsLeavesTheOthers) {
  add(Device::cpu())->action = [](Request& request) {
    if (request.inputs.values()[0].GetTensorTypeAndShapeInfo().GetShape()[1] == 2) {
      throw std::runtime_error("two");
    }
    answer(request);
  };
  const auto rows = filled({1, 2, 3});
  EXPECT_TRUE(rows->submit(pool, std::nullopt));
  rows->wait();
  ASSERT_EQ(rows->errors().size(), 1U);
  EXPECT_EQ(rows->errors()[0].first, 1U);
  EXPECT_NE(rows->errors()[0].second, nullptr);
  const std::vector<float> table = table_of(*rows);
  EXPECT_EQ((std::vector<float>{table[8], table[9]}), (std::vector<float>{2, 4}));
}

TEST_F(TokenRowsOfPools, WhatIsGivenUpWithoutRoomIsFreed) {
  pool = Pool::make({0, {}});
  const auto runner = add(Device::cpu());
  keep_busy(runner);
  auto rows = filled({1, 2});
  const std::weak_ptr<Rows> kept = rows;
  EXPECT_FALSE(rows->submit(pool, Pool::Clock::now()));
  rows.reset();
  EXPECT_TRUE(kept.expired());
}

TEST_F(TokenRowsOfPools, WhatIsCancelledEndsAtOnce) {
  const auto runner = add(Device::cpu());
  keep_busy(runner);
  const auto rows = filled({1, 2});
  EXPECT_TRUE(rows->submit(pool, std::nullopt));
  rows->cancel();
  rows->wait();
  ASSERT_EQ(rows->errors().size(), 2U);
  for (const auto& [index, error] : rows->errors()) {
    EXPECT_FALSE(error) << index;
  }
}

}  // namespace
}  // namespace ortmulti::tests
