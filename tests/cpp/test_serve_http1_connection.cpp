// A connection of HTTP/1.1: the order of answers, bodies, limits, deadlines and ends. The clock is the test's.
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "http1_exchange.hpp"

namespace ortmulti::tests::http1 {
namespace {

using namespace std::chrono_literals;

TEST(Http1, KeepsConnectionsOrClosesThemAsTheClientWants) {
  struct Case {
    std::string request;
    bool closes;
    std::string said;
  };
  const Case cases[] = {
      {"GET / HTTP/1.1\r\nHost: a\r\n\r\n", false, ""},
      {"GET / HTTP/1.1\r\nHost: a\r\nConnection: keep-alive\r\n\r\n", false, ""},
      {"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", true, "close"},
      {"GET / HTTP/1.1\r\nHost: a\r\nConnection: a,, CLOSE ,b\r\n\r\n", true, "close"},
      {"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nConnection: keep-alive\r\n\r\n", true, "close"},
      {"GET / HTTP/1.1\r\nHost: a\r\nConnection: closed\r\n\r\n", false, ""},
      {"GET / HTTP/1.0\r\n\r\n", true, ""},
      {"GET / HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n", false, "keep-alive"},
      {"GET / HTTP/1.0\r\nConnection: keep-alive, close\r\n\r\n", true, ""},
  };
  for (const Case& each : cases) {
    SCOPED_TRACE(each.request);
    Exchange exchange;
    exchange.send(each.request);
    EXPECT_EQ(exchange.calls.size(), 1U);
    EXPECT_EQ(exchange.connection->finished(), each.closes);
    const std::size_t at = exchange.output.find("connection: ");
    EXPECT_EQ(at == std::string::npos ? "" : exchange.output.substr(at + 12, exchange.output.find('\r', at) - at - 12),
              each.said);
    EXPECT_EQ(exchange.send(each.request), !each.closes);
    EXPECT_TRUE(same_however_cut(each.request + get("/next")));
  }
}

TEST(Http1, AnswersPipelinedRequestsInOrderOneByOne) {
  Exchange exchange;
  exchange.at_once = false;
  exchange.send(post("1") + post("2") + get("/3"));
  EXPECT_EQ(exchange.calls.size(), 1U);
  exchange.answer(text_reply("one"));
  EXPECT_EQ(exchange.calls.size(), 1U) << "before the first answer is sent";
  exchange.take();
  ASSERT_EQ(exchange.calls.size(), 2U);
  exchange.answer(text_reply("two"));
  exchange.take();
  exchange.answer(text_reply("three"));
  exchange.take();
  EXPECT_EQ(exchange.calls, (std::vector<std::string>{"POST /p? [1]", "POST /p? [2]", "GET /3? []"}));
  EXPECT_LT(exchange.output.find("one"), exchange.output.find("two"));
  EXPECT_LT(exchange.output.find("two"), exchange.output.find("three"));
}

TEST(Http1, AnswersManyPipelinedRequests) {
  Exchange exchange;
  const std::string requests = repeated(get("/pipelined"), 5000);
  EXPECT_TRUE(exchange.send(requests, 100'000));
  EXPECT_EQ(exchange.calls.size(), 5000U);
  EXPECT_EQ(exchange.output, repeated(answer_to("GET /pipelined? []"), 5000));
}

TEST(Http1, ReadsLittleAheadOfARequestThatIsNotAnswered) {
  Exchange exchange;
  exchange.at_once = false;
  exchange.send(get("/"));
  const std::string requests = repeated(get("/pipelined"), 1000);
  std::size_t read = 0;
  while (exchange.send(std::string_view(requests).substr(read, 10))) {
    read += 10;
  }
  EXPECT_GE(read, 4000U);
  EXPECT_LE(read, 20'000U);
  exchange.at_once = true;
  exchange.answer(text_reply(""));
  exchange.take();
  EXPECT_TRUE(exchange.send(std::string_view(requests).substr(read)));
  EXPECT_EQ(exchange.calls.size(), 1001U);
}

TEST(Http1, ReadsLargeBodiesIntoTheirOwnMemory) {
  constexpr std::size_t size = 3'000'000;
  std::string body(size, '\0');
  for (std::size_t at = 0; at < size; ++at) {
    body[at] = static_cast<char>(at * 2'654'435'761U >> 13U);
  }
  for (const bool in_chunks : {false, true}) {
    const std::string request = in_chunks ? chunked("2DC6C0\r\n" + body + "\r\n0\r\n\r\n") : post(body);
    for (const std::size_t most : {everything, std::size_t{70'000}, std::size_t{4099}}) {
      Exchange exchange;
      exchange.at_once = false;
      EXPECT_TRUE(exchange.send(std::string_view(request).substr(0, 1000), most));
      EXPECT_LT(exchange.admission.bytes(), 1000U) << "only what has arrived is counted";
      EXPECT_TRUE(exchange.send(std::string_view(request).substr(1000, 100'000), most));
      const std::byte* const place = exchange.connection->room().data();
      EXPECT_TRUE(exchange.send(request.substr(101'000) + get("/next"), most));
      ASSERT_NE(exchange.pending, nullptr);
      EXPECT_TRUE(exchange.pending->body.text() == body);
      EXPECT_EQ(exchange.admission.bytes(), size);
      const std::byte* const memory = exchange.pending->body.data();
      EXPECT_TRUE(in_chunks || (place > memory && place < memory + size));
      exchange.answer(text_reply("abc"));
      EXPECT_EQ(exchange.admission.bytes(), 3U) << "the answer's";
      exchange.take();
      EXPECT_EQ(exchange.admission.bytes(), 0U);
      EXPECT_EQ(exchange.calls.back(), "GET /next? []");
    }
  }
}

TEST(Http1, PlacesTensorsBehindTheJsonAtAlignedAddresses) {
  const std::string body(100'000, 'b');
  for (const std::string size : {"147", "64", "0", "100000", "99999999999", "-1", ""}) {
    SCOPED_TRACE(size);
    Exchange exchange;
    exchange.at_once = false;
    EXPECT_TRUE(exchange.send(post(body, "Inference-Header-Content-Length: " + size + "\r\n"), 5000));
    ASSERT_NE(exchange.pending, nullptr);
    EXPECT_EQ(exchange.pending->body.text(), body);
    const std::size_t json = size.empty() || size == "-1" ? 0 : std::stoul(size);
    EXPECT_EQ((reinterpret_cast<std::uintptr_t>(exchange.pending->body.data()) + json) % 64, 0U);
  }
}

TEST(Http1, AwaitsTheRestOfALargeBodyAlone) {
  Exchange exchange;
  const std::string request = post(std::string(100'000, 'b'));
  const std::size_t head = request.size() - 100'000;
  EXPECT_EQ(exchange.connection->awaited(), 1U);
  exchange.send(std::string_view(request).substr(0, head - 1));
  EXPECT_EQ(exchange.connection->awaited(), 1U);
  exchange.send(std::string_view(request).substr(head - 1, 1001));
  EXPECT_EQ(exchange.connection->awaited(), 99'000U);
  exchange.send(std::string_view(request).substr(head + 1000, 90'000));
  EXPECT_EQ(exchange.connection->awaited(), 1U) << "what may have the next request behind it is read as it comes";
  exchange.send(std::string_view(request).substr(head + 91'000));
  EXPECT_EQ(exchange.calls.size(), 1U);
  EXPECT_EQ(exchange.connection->awaited(), 1U);
}

TEST(Http1, RefusesABodyThatIsTooLargeBeforeItIsRead) {
  Limits limits;
  limits.body = 1'000'000;
  Exchange exchange(limits);
  EXPECT_TRUE(exchange.send("POST /p HTTP/1.1\r\nHost: a\r\nContent-Length: 1000001\r\n\r\n"));
  EXPECT_EQ(exchange.status(), 413);
  EXPECT_TRUE(exchange.closing());
  EXPECT_NE(exchange.output.find("\"error\""), std::string::npos);
  EXPECT_EQ(exchange.begun.size(), 1U) << "the router could refuse it first";
}

TEST(Http1, RefusesABodyWithoutABudgetAndGivesItBack) {
  Limits limits;
  limits.memory = 500'000;
  for (const std::string& request :
       {post(std::string(600'000, 'x')), chunked("927c0\r\n" + std::string(600'000, 'x'))}) {
    Exchange exchange(limits);
    Admission::Bytes others(exchange.admission);
    EXPECT_TRUE(others.grow_to(100'000));
    exchange.takes = false;
    EXPECT_TRUE(exchange.send(std::string_view(request).substr(0, 300'000), 50'000));
    EXPECT_FALSE(exchange.has_output());
    EXPECT_TRUE(exchange.send(std::string_view(request).substr(300'000), 50'000));
    EXPECT_LT(exchange.admission.bytes(), 101'000U);
    exchange.take();
    EXPECT_EQ(exchange.status(), 503);
    EXPECT_TRUE(exchange.closing());
    EXPECT_TRUE(exchange.calls.empty());
    EXPECT_EQ(exchange.admission.bytes(), 100'000U);
  }
}

TEST(Http1, CountsLargeHeadsButNotSmallOnes) {
  Limits limits;
  limits.memory = 5000;
  Exchange exchange(limits);
  Admission::Bytes others(exchange.admission);
  EXPECT_TRUE(others.grow_to(5000));
  exchange.send(get("/" + std::string(3000, 'a')));
  EXPECT_EQ(exchange.status(), 200);
  exchange.output.clear();
  exchange.send("GET /" + std::string(5000, 'a') + " HTTP/1.1\r\n");
  EXPECT_EQ(exchange.status(), 503);

  Exchange unfinished(limits);
  unfinished.send("GET /" + std::string(20'000, 'a'));
  EXPECT_EQ(unfinished.status(), 503) << "a line of which the end is missing";

  Exchange half(limits);
  half.send("GET /" + std::string(3000, 'a'));
  EXPECT_EQ(half.admission.bytes(), 0U);
  half.send(std::string(1900, 'a'));
  EXPECT_EQ(half.admission.bytes(), 4905U) << "and it is small";
}

TEST(Http1, AnswersARefusalBeforeTheBodyAndDiscardsTheRest) {
  Limits limits;
  limits.body = 100'000;
  Exchange exchange(limits);
  exchange.refuses = [] { return serve::refusal(serve::Protocol::http, 401, "no token"); };
  const std::string request = post(std::string(90'000, 'x'));
  EXPECT_TRUE(exchange.send(std::string_view(request).substr(0, 200)));
  EXPECT_EQ(exchange.status(), 401);
  EXPECT_TRUE(exchange.closing());
  EXPECT_TRUE(exchange.send(request.substr(200) + get("/")));
  EXPECT_EQ(exchange.begun.size(), 1U);
  EXPECT_FALSE(exchange.connection->finished());
  exchange.connection->received_end(false, exchange.now);
  EXPECT_TRUE(exchange.connection->finished());

  Exchange endless(limits);
  endless.refuses = exchange.refuses;
  EXPECT_FALSE(endless.send(post(std::string(90'000, 'x')) + std::string(100'000, 'x')));
  EXPECT_TRUE(endless.connection->finished());

  Exchange silent(limits);
  silent.refuses = exchange.refuses;
  silent.send(std::string_view(request).substr(0, 200));
  EXPECT_EQ(silent.to_deadline(), 2);
  EXPECT_TRUE(silent.connection->finished());
}

TEST(Http1, KeepsAConnectionWhoseRequestIsRefusedWithoutABody) {
  Exchange exchange;
  exchange.refuses = [] { return serve::refusal(serve::Protocol::http, 401, "no token"); };
  exchange.send(get("/") + post("") + get("/"));
  EXPECT_EQ(exchange.begun.size(), 3U);
  EXPECT_FALSE(exchange.closing());
  EXPECT_TRUE(same_however_cut(get("/") + post("")));
}

TEST(Http1, SaysThatTheBodyMayCome) {
  const std::string head = "POST /p HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nExpect: 100-Continue\r\n\r\n";
  const std::string interim = "HTTP/1.1 100 Continue\r\n\r\n";
  Exchange exchange;
  exchange.send(head);
  EXPECT_EQ(exchange.output, interim);
  exchange.send("ab");
  EXPECT_EQ(exchange.output, interim + answer_to("POST /p? [ab]"));
  EXPECT_TRUE(same_however_cut(head + "ab" + head + "cd"));

  Exchange refused;
  refused.refuses = [] { return serve::refusal(serve::Protocol::http, 401, ""); };
  refused.send(head);
  EXPECT_EQ(refused.status(), 401);

  Exchange without_body;
  without_body.send(get("/", "Expect: 100-continue\r\n"));
  EXPECT_EQ(without_body.status(), 200);

  Exchange old;
  old.send("POST /p HTTP/1.0\r\nExpect: 100-continue\r\nContent-Length: 1\r\n\r\n");
  EXPECT_EQ(old.output, "");

  Exchange slow;
  slow.takes = false;
  slow.send(head + "ab");
  slow.take();
  EXPECT_EQ(slow.output, interim + answer_to("POST /p? [ab]"));
}

TEST(Http1, AnswersHeadWithoutABody) {
  Exchange exchange;
  exchange.send("HEAD /x HTTP/1.1\r\nHost: a\r\n\r\n" + get("/y"));
  const std::string whole = answer_to("HEAD /x? []");
  EXPECT_EQ(exchange.output, whole.substr(0, whole.find("\r\n\r\n") + 4) + answer_to("GET /y? []"));
  EXPECT_EQ(exchange.admission.bytes(), 0U);
}

TEST(Http1, WritesHeadersWithoutLineEndsAndItsOwnFraming) {
  Exchange exchange;
  exchange.at_once = false;
  exchange.send(get("/"));
  Reply reply;
  reply.status = 404;
  reply.headers = {{"x", std::string("a\r\nset-cookie: b\nc\0d", 20)},
                   {"y\r\nz", "1"},
                   {"content-length", "7"},
                   {"connection", "close"},
                   {"transfer-encoding", "chunked"}};
  exchange.answer(std::move(reply));
  exchange.take();
  EXPECT_EQ(exchange.output,
            "HTTP/1.1 404 Not Found\r\nx: a  set-cookie: b c d\r\ny  z: 1\r\ncontent-length: 0\r\n\r\n");
  EXPECT_FALSE(exchange.connection->finished());
}

TEST(Http1, SendsLargePiecesWithoutCopyingAndFreesThemAsTheyAreSent) {
  for (const std::size_t step : {everything, std::size_t{1}, std::size_t{777}, std::size_t{10'000}}) {
    Exchange exchange;
    exchange.at_once = false;
    exchange.send(get("/"));
    Reply reply;
    const std::vector<std::string> texts = {"small", "",      std::string(10'000, 'a'),
                                            "",      "after", std::string(5'000, 'b')};
    std::vector<std::weak_ptr<const void>> owners;
    std::string expected;
    for (const std::string& text : texts) {
      reply.body.push_back(serve::piece_of(text));
      owners.push_back(reply.body.back().owner);
      expected += text;
    }
    const char* const large = reply.body[2].bytes.data();
    exchange.answer(std::move(reply));
    EXPECT_EQ(exchange.admission.bytes(), expected.size());
    std::array<iovec, 8> parts{};
    ASSERT_EQ(exchange.connection->to_send(parts), 4U);
    EXPECT_EQ(parts[1].iov_base, large);
    EXPECT_EQ(exchange.connection->to_send(std::span(parts).first(2)), 2U);
    bool freed_early = false;
    while (exchange.has_output()) {
      exchange.take(step);
      freed_early = freed_early || (owners[2].expired() && !owners[5].expired());
    }
    EXPECT_EQ(freed_early, step < 1000);
    EXPECT_EQ(exchange.output.substr(exchange.output.find("\r\n\r\n") + 4), expected);
    EXPECT_TRUE(owners[5].expired());
    EXPECT_EQ(exchange.admission.bytes(), 0U);
  }
}

TEST(Http1, SendsAnswersBeyondTheBudget) {
  Limits limits;
  limits.memory = 10;
  Exchange exchange(limits);
  exchange.at_once = false;
  exchange.send(get("/"));
  exchange.answer(text_reply(std::string(100, 'x')));
  EXPECT_EQ(exchange.admission.bytes(), 100U);
  exchange.take();
  EXPECT_EQ(exchange.status(), 200);
  EXPECT_EQ(exchange.admission.bytes(), 0U);
}

TEST(Http1, EndsIdleConnectionsWithoutAWord) {
  Exchange exchange;
  EXPECT_EQ(exchange.to_deadline(), 75);
  EXPECT_TRUE(exchange.connection->finished());
  EXPECT_FALSE(exchange.has_output());

  Exchange answered;
  answered.now += 10s;
  answered.send(get("/"));
  EXPECT_EQ(answered.to_deadline(), 75) << "since the answer";
  EXPECT_TRUE(answered.connection->finished());

  Exchange empty_lines;
  empty_lines.now += 10s;
  empty_lines.send("\r\n\r", 1);
  empty_lines.send("\n");
  EXPECT_EQ(empty_lines.to_deadline(), 65) << "an empty line is no request";
  EXPECT_TRUE(empty_lines.connection->finished());
}

TEST(Http1, RefusesRequestsThatArriveTooSlowly) {
  const std::string whole = post(std::string(100'000, 'x'));
  for (const std::size_t begun : {std::size_t{1}, std::size_t{30}, std::size_t{200}, std::size_t{50'000}}) {
    Exchange exchange;
    exchange.now += 10s;
    exchange.send(std::string_view(whole).substr(0, begun));
    exchange.now += 59s;
    exchange.send(std::string_view(whole).substr(begun, 10));
    EXPECT_EQ(exchange.output, "");
    EXPECT_EQ(exchange.to_deadline(), 1);
    exchange.take();
    EXPECT_EQ(exchange.status(), 408);
    EXPECT_TRUE(exchange.closing());
    EXPECT_EQ(exchange.admission.bytes(), 0U);
    EXPECT_EQ(exchange.to_deadline(), 2);
    EXPECT_TRUE(exchange.connection->finished());
  }
}

TEST(Http1, CountsTheTimeOfAPipelinedRequestFromWhenItIsReadOn) {
  Exchange exchange;
  exchange.at_once = false;
  exchange.send(get("/") + "GET /next");
  EXPECT_EQ(exchange.connection->deadline(), std::nullopt) << "the router's time";
  exchange.now += 1000s;
  exchange.answer(text_reply(""));
  exchange.take();
  EXPECT_EQ(exchange.status(), 200);
  EXPECT_EQ(exchange.to_deadline(), 60);
  exchange.take();
  EXPECT_NE(exchange.output.find(" 408 "), std::string::npos);
}

TEST(Http1, CutsOffAClientThatTakesTooLittle) {
  constexpr std::size_t enough = std::size_t{64} << 10;
  Exchange exchange;
  exchange.at_once = false;
  exchange.send(get("/") + get("/next"));
  exchange.answer(text_reply(std::string(300'000, 'x')));
  exchange.now += 59s;
  exchange.take(enough);
  exchange.now += 30s;
  exchange.take(enough - 1);
  exchange.now += 29s;
  exchange.take(1);
  exchange.now += 59s;
  exchange.take(enough - 1);
  EXPECT_EQ(exchange.admission.bytes(), 300'000U);
  EXPECT_EQ(exchange.to_deadline(), 1);
  EXPECT_TRUE(exchange.connection->finished());
  EXPECT_FALSE(exchange.has_output());
  EXPECT_EQ(exchange.calls.size(), 1U);

  Exchange rest;
  rest.at_once = false;
  rest.send(get("/"));
  rest.answer(text_reply(std::string(enough, 'x')));
  rest.take(enough);
  rest.now += 59s;
  rest.take();
  EXPECT_EQ(rest.to_deadline(), 75) << "it is idle";

  Exchange refused;
  refused.takes = false;
  refused.send("nonsense\r\n");
  EXPECT_EQ(refused.to_deadline(), 60);
  EXPECT_TRUE(refused.connection->finished());
  EXPECT_FALSE(refused.has_output());

  Exchange waiting;
  waiting.at_once = waiting.takes = false;
  waiting.send(post("a", "Expect: 100-continue\r\n"));
  EXPECT_EQ(waiting.to_deadline(), 60);
  EXPECT_TRUE(waiting.connection->finished());
  EXPECT_EQ(waiting.left, std::vector<std::string>{"/p"});
}

TEST(Http1, AnswersAfterTheClientHasClosedItsSide) {
  Exchange exchange;
  exchange.at_once = false;
  exchange.send(get("/1") + get("/2") + "GET /3");
  exchange.connection->received_end(false, exchange.now);
  EXPECT_FALSE(exchange.connection->finished());
  EXPECT_TRUE(exchange.left.empty());
  exchange.answer(text_reply("one"));
  exchange.take();
  exchange.answer(text_reply("two"));
  exchange.take();
  EXPECT_NE(exchange.output.find("two"), std::string::npos);
  EXPECT_TRUE(exchange.connection->finished());
  EXPECT_EQ(exchange.calls.size(), 2U);
}

TEST(Http1, EndsWithTheClient) {
  for (const std::string& sent : {std::string(), std::string("GET"), post("abc").substr(0, post("abc").size() - 1)}) {
    for (const bool lost : {false, true}) {
      Exchange exchange;
      exchange.send(sent);
      exchange.connection->received_end(lost, exchange.now);
      EXPECT_TRUE(exchange.connection->finished());
      EXPECT_EQ(exchange.output, "");
      EXPECT_TRUE(exchange.left.empty()) << "the router has no call";
    }
  }
}

TEST(Http1, TellsTheRouterOfAClientThatIsLost) {
  Exchange exchange;
  exchange.at_once = false;
  exchange.send(get("/1") + get("/2"));
  exchange.connection->received_end(false, exchange.now);
  exchange.connection->received_end(true, exchange.now);
  EXPECT_EQ(exchange.left, std::vector<std::string>{"/1"});
  EXPECT_TRUE(exchange.connection->finished());
  exchange.answer(text_reply("late"));
  EXPECT_FALSE(exchange.has_output());
  EXPECT_EQ(exchange.calls.size(), 1U);

  Exchange sending;
  sending.takes = false;
  sending.send(get("/1"));
  sending.connection->received_end(true, sending.now);
  EXPECT_TRUE(sending.left.empty()) << "it has answered";
  EXPECT_FALSE(sending.has_output());
}

TEST(Http1, EndsSoonWithoutARequest) {
  for (const std::string& sent : {std::string(), std::string("\r\n"), get("/")}) {
    Exchange exchange;
    exchange.send(sent);
    exchange.take();
    exchange.connection->end(exchange.now);
    EXPECT_FALSE(exchange.connection->finished());
    EXPECT_EQ(exchange.to_deadline(), 0.25);
    EXPECT_TRUE(exchange.connection->finished());
  }
}

TEST(Http1, AnswersAtTheEndARequestThatIsOnItsWay) {
  Exchange exchange;
  exchange.send(get("/1"));
  exchange.take();
  exchange.connection->end(exchange.now);
  exchange.send(get("/2"));
  EXPECT_EQ(exchange.status(), 200);
  EXPECT_TRUE(exchange.closing());
  EXPECT_TRUE(exchange.connection->finished());
}

TEST(Http1, AnswersAtTheEndWhatWasBegun) {
  const std::string request = post("abc");
  for (std::size_t cut = 1; cut < request.size(); ++cut) {
    Exchange exchange;
    exchange.send(std::string_view(request).substr(0, cut));
    exchange.connection->end(exchange.now);
    EXPECT_FALSE(exchange.connection->finished());
    exchange.send(request.substr(cut) + get("/next"));
    EXPECT_EQ(exchange.calls, std::vector<std::string>{"POST /p? [abc]"});
    EXPECT_EQ(exchange.status(), 200);
    EXPECT_TRUE(exchange.closing());
    EXPECT_TRUE(exchange.connection->finished());
  }
}

TEST(Http1, AnswersAtTheEndAllThatWasRead) {
  Exchange exchange;
  exchange.at_once = false;
  exchange.send(get("/1") + get("/2") + "GET /3 HTT");
  exchange.connection->end(exchange.now);
  EXPECT_FALSE(exchange.send("P")) << "nothing more is read ahead";
  exchange.answer(text_reply("one"));
  exchange.take();
  exchange.answer(text_reply("two"));
  exchange.take();
  EXPECT_FALSE(exchange.closing());
  EXPECT_TRUE(exchange.send("P/1.1\r\nHost: a\r\n\r\n" + get("/4")));
  exchange.answer(text_reply("three"));
  exchange.take();
  EXPECT_TRUE(exchange.closing());
  EXPECT_TRUE(exchange.connection->finished());
  EXPECT_EQ(exchange.calls, (std::vector<std::string>{"GET /1? []", "GET /2? []", "GET /3? []"}));

  Exchange last;
  last.at_once = false;
  last.send(get("/1"));
  last.connection->end(last.now);
  last.answer(text_reply("one"));
  last.take();
  EXPECT_TRUE(last.closing());
  EXPECT_TRUE(last.connection->finished());

  Exchange slow;
  slow.send("GET /");
  slow.connection->end(slow.now);
  EXPECT_EQ(slow.to_deadline(), 60);
  slow.take();
  EXPECT_EQ(slow.status(), 503);
}

}  // namespace
}  // namespace ortmulti::tests::http1
