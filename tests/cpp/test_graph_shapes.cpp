#include <gtest/gtest.h>

#include <string>

#include "core/pool/graph_shapes.hpp"

namespace ortmulti::tests {
namespace {

void learn_others(GraphShapes& shapes, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    shapes.learn(std::to_string(i), {});
  }
}

TEST(GraphShapes, AreForgottenByRecentUse) {
  GraphShapes shapes;
  shapes.learn("unused", {});
  shapes.learn("used", {});
  learn_others(shapes, GraphShapes::most - 2);
  EXPECT_TRUE(shapes.find("used"));
  shapes.learn("new", {});
  EXPECT_TRUE(shapes.find("new"));
  EXPECT_TRUE(shapes.find("used"));
  EXPECT_FALSE(shapes.find("unused"));
}

TEST(GraphShapes, ARefusalLastsWhileItIsUsed) {
  GraphShapes shapes;
  shapes.learn("odd", {});
  EXPECT_FALSE(shapes.refuse("odd"));
  learn_others(shapes, GraphShapes::most - 1);
  shapes.learn("odd", {});
  EXPECT_FALSE(shapes.find("odd"));
  learn_others(shapes, GraphShapes::most);
  shapes.learn("odd", {});
  EXPECT_TRUE(shapes.find("odd"));
}

TEST(GraphShapes, NothingIsCapturedAfterRefusalsInARow) {
  GraphShapes shapes;
  const auto refuse = [&shapes](int number) {
    const std::string key = "refused " + std::to_string(number);
    shapes.learn(key, {});
    EXPECT_TRUE(shapes.find(key));
    const bool last = shapes.refuse(key);
    EXPECT_FALSE(shapes.refuse(key)) << "it was refused already";
    return last;
  };
  int number = 0;
  for (; number < GraphShapes::most_refusals - 1; ++number) {
    EXPECT_FALSE(refuse(number));
  }
  shapes.captured();  // begins anew
  for (; number < 2 * GraphShapes::most_refusals - 2; ++number) {
    EXPECT_FALSE(refuse(number));
  }
  shapes.learn("good", {});
  EXPECT_TRUE(refuse(number));
  EXPECT_FALSE(shapes.find("good"));
  shapes.captured();  // of another request, which had begun before
  shapes.learn("new", {});
  EXPECT_FALSE(shapes.find("new"));
}

}  // namespace
}  // namespace ortmulti::tests
