// Requests of vectors: which are read here, and which are answered together.

#include <gtest/gtest.h>

#include <cstddef>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "core/serve/admission.hpp"
#include "core/serve/asked.hpp"
#include "core/serve/buffer.hpp"
#include "core/serve/vector_calls.hpp"
#include "core/serve/vector_request.hpp"

namespace ortmulti::serve {
namespace {

using Cut = VectorWish::Cut;
using Texts = std::vector<std::string>;

class Vectors : public testing::Test {
 protected:
  std::shared_ptr<Call> call(std::string_view body, std::string path = "/embed") {
    auto made = std::make_shared<Call>(Protocol::http, buffers_, admission_);
    made->method = "POST";
    made->path = std::move(path);
    made->body.append(body);
    return made;
  }
  std::optional<AskedVectors> read(std::string_view body, std::string path = "/embed") {
    return read_vectors(*call(body, std::move(path)));
  }

 private:
  BufferPool buffers_{0};
  Admission admission_{Limits{}};
};

class VectorRequests : public Vectors {};

TEST_F(VectorRequests, SayWhatIsWanted) {
  const auto openai = read(R"({"input": ["a", "ü"], "model": "m", "encoding_format": "base64", "dimensions": 3,
                              "user": "u", "normalize": false, "truncate": false, "prompt_name": "query"})",
                           "/v1/embeddings");
  ASSERT_TRUE(openai);
  EXPECT_EQ(openai->texts, (Texts{"a", "ü"}));
  EXPECT_EQ(openai->wish, (VectorWish{"/v1/embeddings", "m", "query", 3, false, Cut::none, true}));
  const auto tei = read(R"({"inputs": "a", "truncation_direction": "Left", "truncate": true, "model": null})");
  ASSERT_TRUE(tei);
  EXPECT_EQ(tei->wish, (VectorWish{"/embed", "", "", std::nullopt, std::nullopt, Cut::left, false}));
  const auto root = read(R"({"inputs": ["a"]})", "/");
  ASSERT_TRUE(root);
  EXPECT_EQ(root->wish.cut, Cut::right);
}

TEST_F(VectorRequests, OfAnyOtherKindAreLeftToPython) {
  const std::string_view others[] = {"",
                                     "[]",
                                     "{}",
                                     "1",
                                     R"("a")",
                                     R"({"inputs": "a"} 1)",
                                     R"({"inputs": ""})",
                                     R"({"inputs": []})",
                                     R"({"inputs": ["a", ""]})",
                                     R"({"inputs": [1, 2]})",
                                     R"({"inputs": [["a"]]})",
                                     R"({"inputs": {"a": "b"}})",
                                     R"({"inputs": null})",
                                     R"({"input": "a"})",
                                     R"({"inputs": "a", "inputs": "b"})",
                                     R"({"inputs": "a", "more": 1})",
                                     R"({"inputs": "\ud800"})",
                                     "{\"inputs\": \"\xff\"}",
                                     R"({"inputs": "a", "normalize": 1})",
                                     R"({"inputs": "a", "dimensions": 0})",
                                     R"({"inputs": "a", "dimensions": -1})",
                                     R"({"inputs": "a", "dimensions": 1.0})",
                                     R"({"inputs": "a", "dimensions": 4294967296})",
                                     R"({"inputs": "a", "truncation_direction": "up"})",
                                     R"({"inputs": "a", "model": 1})",
                                     R"({"inputs": "a", "model": ["m"]})",
                                     R"({"inputs": "a", "truncate": "no"})",
                                     R"({"inputs": "a")",
                                     R"({"inputs": NaN})",
                                     R"({"model": "m"})"};
  for (const std::string_view body : others) {
    EXPECT_FALSE(read(body)) << body;
  }
  EXPECT_FALSE(read(R"({"input": "a", "encoding_format": "hex"})", "/embeddings"));
  EXPECT_FALSE(read(R"({"inputs": "a"})", "/rerank"));
  EXPECT_FALSE(read(R"({"inputs": "a"})", "/embed/"));
  EXPECT_FALSE(read(R"({"inputs": ")" + std::string(20'000, 'a') + R"("})"));
  const auto coded = call(R"({"inputs": "a"})");
  coded->headers.emplace_back("content-encoding", "gzip");
  EXPECT_FALSE(read_vectors(*coded));
  const auto got = call(R"({"inputs": "a"})");
  got->method = "GET";
  EXPECT_FALSE(read_vectors(*got));
}

class VectorGroups : public Vectors {
 protected:
  std::shared_ptr<Call> add(std::string_view body) {
    auto made = call(body);
    EXPECT_TRUE(calls->add(made));
    return made;
  }
  // Those that Python is to answer.
  std::vector<std::shared_ptr<Call>> asked;
  std::vector<std::pair<std::shared_ptr<Call>, std::exception_ptr>> failed;
  const std::shared_ptr<VectorCalls> calls = std::make_shared<VectorCalls>(VectorCalls::Python{
      .ask = [this](std::shared_ptr<Call> each) { asked.push_back(std::move(each)); },
      .fail = [this](std::shared_ptr<Call> each,
                     std::exception_ptr error) { failed.emplace_back(std::move(each), std::move(error)); }});
};

TEST_F(VectorGroups, HaveWhatWantsTheSameInTheirOrder) {
  add(R"({"inputs": ["a", "b"]})");
  add(R"({"inputs": "c", "normalize": true})");
  add(R"({"inputs": "d"})");
  EXPECT_EQ(calls->take(64)->take_texts(), (Texts{"a", "b", "d"}));
  EXPECT_EQ(calls->take(64)->take_texts(), (Texts{"c"}));
}

TEST_F(VectorGroups, HaveSoManyTextsAtMost) {
  add(R"({"inputs": ["a", "b"]})");
  const auto longer = add(R"({"inputs": ["c", "d", "e", "f"]})");
  add(R"({"inputs": ["g", "h"]})");
  add(R"({"inputs": "i"})");
  EXPECT_EQ(calls->take(3)->take_texts(), (Texts{"a", "b", "i"}));
  EXPECT_EQ(calls->take(3)->take_texts(), (Texts{"g", "h"}));
  EXPECT_EQ(asked, std::vector{longer});
  EXPECT_FALSE(calls->gone(*longer)) << "it is Python's";
}

TEST_F(VectorGroups, AreForgottenWithTheirClients) {
  const auto before = add(R"({"inputs": "a"})");
  const auto one = add(R"({"inputs": "b"})");
  const auto other = add(R"({"inputs": "c"})");
  EXPECT_TRUE(calls->gone(*before));
  const auto group = calls->take(64);
  EXPECT_EQ(group->take_texts(), (Texts{"b", "c"}));
  EXPECT_TRUE(calls->gone(*one));
  EXPECT_FALSE(calls->gone(*one));
  group->leave();
  EXPECT_EQ(asked, std::vector{other});
  group->leave();
  group->fail(nullptr);
  EXPECT_EQ(asked.size(), 1U);
  EXPECT_TRUE(failed.empty());
}

TEST_F(VectorGroups, GiveAnErrorToAllThatWait) {
  const auto gone = add(R"({"inputs": "a"})");
  const auto waits = add(R"({"inputs": "b"})");
  const auto group = calls->take(64);
  calls->gone(*gone);
  group->fail(std::make_exception_ptr(Refused(503, "no")));
  ASSERT_EQ(failed.size(), 1U);
  EXPECT_EQ(failed.front().first, waits);
}

TEST_F(VectorGroups, NoteWhichRequestsHaveAllTheirRows) {
  add(R"({"inputs": ["a", "b"]})");
  add(R"({"inputs": "c"})");
  add(R"({"inputs": ["d", "e", "f"]})");
  const auto group = calls->take(64);
  EXPECT_EQ(group->note({5, 1}), std::vector<std::size_t>());
  EXPECT_EQ(group->note({2, 0}), (std::vector<std::size_t>{1, 0}));
  EXPECT_EQ(group->note({3, 4}), std::vector<std::size_t>{2});
}

TEST_F(VectorGroups, EndWithTheServer) {
  std::shared_ptr<VectorGroup> taken = std::make_shared<VectorGroup>(calls, VectorWish());
  std::thread taker([&] { taken = calls->take(64); });
  calls->close();
  taker.join();
  EXPECT_EQ(taken, nullptr);
  EXPECT_FALSE(calls->add(call(R"({"inputs": "a"})")));
}

}  // namespace
}  // namespace ortmulti::serve
