// What both protocols of the server share: admission, memory for bodies, and refusals.
#include <gtest/gtest.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <new>
#include <string>
#include <utility>

#include "core/serve/admission.hpp"
#include "core/serve/buffer.hpp"
#include "core/serve/call.hpp"
#include "test_support.hpp"

namespace ortmulti::tests {
namespace {

using serve::Admission;
using serve::Buffer;
using serve::BufferPool;
using serve::Limits;
using serve::Reply;

constexpr std::size_t everything = std::numeric_limits<std::size_t>::max();

TEST(Admission, CountsBytesUpToTheBudget) {
  Limits limits;
  limits.memory = 100;
  Admission admission(limits);
  Admission::Bytes first(admission);
  ASSERT_TRUE(first.grow_to(60));
  {
    Admission::Bytes second(admission);
    EXPECT_FALSE(second.grow_to(41));
    EXPECT_EQ(second.count(), 0U);
    EXPECT_FALSE(second.grow_to(everything));
    EXPECT_TRUE(second.grow_to(40));
    EXPECT_TRUE(second.grow_to(10)) << "fewer: no change";
    EXPECT_EQ(admission.bytes(), 100U);
    second.set(500);
    EXPECT_EQ(admission.bytes(), 560U) << "what is there is counted beyond the budget";
    EXPECT_FALSE(first.grow_to(61));
  }
  EXPECT_EQ(admission.bytes(), 60U);
  Admission::Bytes moved = std::move(first);
  first = Admission::Bytes(admission);
  ASSERT_TRUE(first.grow_to(40));
  first = std::move(moved);
  EXPECT_EQ(admission.bytes(), 60U);
  first.resize_down(1);
  EXPECT_EQ(admission.bytes(), 1U);
}

TEST(Admission, HasTimesThatCanBeAddedToATime) {
  Limits limits;
  limits.receive = limits.send = limits.idle = limits.end = Limits::Seconds(1e10);
  const Limits bounded = Admission(limits).limits();
  for (const Limits::Seconds time : {bounded.receive, bounded.send, bounded.idle, bounded.end}) {
    EXPECT_EQ(time, Admission::longest_time);
  }
  EXPECT_EQ(Admission(Limits()).limits().send, Limits().send);
}

TEST(Admission, HasPlacesForSoManyRequestsAndConnections) {
  Limits limits;
  limits.concurrent = 2;
  limits.connections = 1;
  Admission admission(limits);
  Admission::Place first = admission.request();
  const Admission::Place second = admission.request();
  EXPECT_TRUE(first && second && admission.connection());
  EXPECT_FALSE(admission.request());
  EXPECT_EQ(admission.requests(), 2U);
  EXPECT_EQ(admission.connections(), 0U);
  first.reset();
  EXPECT_TRUE(admission.request());
}

TEST(Admission, NeverGivesMoreThanThereIsToManyThreads) {
  Limits limits;
  limits.memory = 3;
  limits.concurrent = 3;
  Admission admission(limits);
  std::atomic<int> inside = 0;
  std::atomic<bool> too_many = false;
  in_threads(6, [&](int) {
    for (int round = 0; round < 2000; ++round) {
      const Admission::Place place = admission.request();
      Admission::Bytes bytes(admission);
      if (place && bytes.grow_to(1)) {
        too_many = too_many || ++inside > 3;
        --inside;
      }
    }
  });
  EXPECT_FALSE(too_many);
  EXPECT_EQ(admission.requests(), 0U);
  EXPECT_EQ(admission.bytes(), 0U);
}

TEST(BufferPool, KeepsMemoryForTheNextBuffers) {
  BufferPool pool(std::size_t{64} << 10);
  std::size_t capacity = 0;
  bool used = true;
  auto memory = pool.take(5000, capacity, used);
  EXPECT_EQ(capacity, 8192U);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(memory.get()) % 64, 0U);
  const std::byte* const place = memory.get();
  memory.reset();
  EXPECT_EQ(pool.kept(), 8192U);
  EXPECT_FALSE(used);
  EXPECT_EQ(pool.take(8192, capacity, used).get(), place);
  EXPECT_TRUE(used);
  pool.take(std::size_t{64} << 10, capacity, used);
  EXPECT_EQ(pool.kept(), 8192U) << "one more is too much";
  EXPECT_THROW(pool.take(everything, capacity, used), std::bad_alloc);
  pool.trim();
  EXPECT_EQ(pool.kept(), 0U);
}

TEST(Buffer, GrowsAndKeepsWhatIsThere) {
  BufferPool pool(0);
  Buffer buffer(pool);
  std::string expected;
  for (int number = 0; number < 3000; ++number) {
    buffer.append(std::to_string(number));
    expected += std::to_string(number);
  }
  EXPECT_EQ(buffer.text(), expected);
  const auto memory = buffer.memory();
  const Buffer moved = std::move(buffer);
  EXPECT_EQ(moved.text(), expected);
  EXPECT_EQ(buffer.size(), 0U);  // NOLINT(bugprone-use-after-move): it is empty then
  EXPECT_EQ(memory.get(), moved.data());
}

TEST(Buffer, PlacesAByteAtAnAlignedAddress) {
  BufferPool pool(0);
  for (const std::size_t index : {0U, 1U, 63U, 64U, 147U}) {
    Buffer buffer(pool);
    buffer.align(index);
    EXPECT_EQ(buffer.text(), "");
    const std::string head(index, 'h');
    buffer.append(head);
    for (const std::size_t size : {10U, 4000U, 5000U, 100'000U}) {  // it moves as it grows, and fills its memory
      const std::string data(size, 'd');
      buffer.append(std::string_view(data).substr(buffer.size() - index));
      EXPECT_EQ(buffer.text(), head + data);
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(buffer.data() + index) % 64, 0U);
      EXPECT_EQ(buffer.memory().get(), buffer.data());
    }
  }
}

TEST(Calls, RefusalsHaveTheFormThatClientsOfThePathRead) {
  const auto body = [](int status, std::string_view path) {
    return std::string(serve::refusal(serve::Protocol::http, status, "no", path).body.at(0).bytes);
  };
  const auto openai = [](std::string_view type) {
    return R"({"error":{"message":"no","type":")" + std::string(type) + R"(","param":null,"code":null}})";
  };
  EXPECT_EQ(body(401, "/v1/embeddings"), openai("authentication_error"));
  EXPECT_EQ(body(413, "/v1/any/other"), openai("invalid_request_error"));
  EXPECT_EQ(body(429, "//embeddings/"), openai("rate_limit_error"));
  EXPECT_EQ(body(503, "/v2/rerank"), openai("server_error"));
  for (const std::string_view path : {"/", "/embed", "/rerank/", "/predict", "/tokenize", "/info"}) {
    EXPECT_EQ(body(413, path), R"({"error":"no","error_type":"Validation"})");
  }
  EXPECT_EQ(body(429, "/embed"), R"({"error":"no","error_type":"Overloaded"})");
  EXPECT_EQ(body(503, "/embed"), R"({"error":"no","error_type":"Unhealthy"})");
  EXPECT_EQ(body(504, "/embed"), R"({"error":"no","error_type":"Backend"})");
  for (const std::string_view path : {"", "/v2/models/a/infer", "/v1", "/embed/a", "/v2/health/ready"}) {
    EXPECT_EQ(body(503, path), R"({"error":"no"})");
  }
  EXPECT_EQ(serve::refusal(serve::Protocol::grpc, 401, "no", "/v1/embeddings").message, "no");
}

TEST(Calls, RefusalsAreJsonOrATextForGrpc) {
  const Reply http =
      serve::refusal(serve::Protocol::http, 404, "no 'a\"\\\n\x7f' \xC3\xA4 \xFF \xED\xA0\x80 \xF0\x9F\x98\x80");
  EXPECT_EQ(http.status, 404);
  EXPECT_EQ(http.body.at(0).bytes,
            "{\"error\":\"no 'a\\\"\\\\\\u000a\\u007f' \xC3\xA4 \\ufffd \\ufffd\\ufffd\\ufffd \xF0\x9F\x98\x80\"}");
  EXPECT_EQ(*serve::find(http.headers, "content-type"), "application/json");
  const Reply grpc = serve::refusal(serve::Protocol::grpc, 404, "no");
  EXPECT_EQ(grpc.message, "no");
  EXPECT_TRUE(grpc.body.empty() && grpc.headers.empty());
  EXPECT_EQ(serve::to_grpc(200), serve::GrpcStatus::ok);
  EXPECT_EQ(serve::to_grpc(413), serve::GrpcStatus::resource_exhausted);
  EXPECT_EQ(serve::to_grpc(503), serve::GrpcStatus::unavailable);
  EXPECT_EQ(serve::to_grpc(418), serve::GrpcStatus::internal);
}

}  // namespace
}  // namespace ortmulti::tests
