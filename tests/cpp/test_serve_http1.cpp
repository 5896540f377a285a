// What HTTP/1.1 is read as, however it is cut, and what is refused.
#include <gtest/gtest.h>

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "http1_exchange.hpp"

namespace ortmulti::tests::http1 {
namespace {

TEST(Http1, ReadsRequestsHoweverTheyAreCut) {
  const std::pair<std::string, std::vector<std::string>> cases[] = {
      {get("/v2/a%20b?x=1%20?y"), {"GET /v2/a b?x=1%20?y []"}},
      {"\r\n\r\n" + get("/"), {"GET /? []"}},
      {post("hello"), {"POST /p? [hello]"}},
      {post("") + post("b"), {"POST /p? []", "POST /p? [b]"}},
      {post("GET / HTTP/1.1\r\n\r\n") + get("/q"), {"POST /p? [GET / HTTP/1.1\r\n\r\n]", "GET /q? []"}},
      {chunked("5\r\nhello\r\n0006;name=\"value\"\r\n world\r\n00\r\nA-trailer: x\r\n\r\n") + get("/"),
       {"POST /c? [hello world]", "GET /? []"}},
      {chunked("0\r\n\r\n") + chunked("A\r\n0123456789\r\na;b\r\n\r\n\r\n\r\n\r\n\r\n\r\n0\r\n\r\n"),
       {"POST /c? []", "POST /c? [0123456789\r\n\r\n\r\n\r\n\r\n]"}},
      {"GET http://b:1/x?y HTTP/1.1\r\nHost: a\r\n\r\n", {"GET /x?y []"}},
      {"GET HTTPS://b?y HTTP/1.1\r\nHost: a\r\n\r\n", {"GET /?y []"}},
      {"OPTIONS * HTTP/1.1\r\nHost:\r\n\r\n", {"OPTIONS *? []"}},
      {get("/", "A:b\r\nC:\t d \t\r\nE:\r\nContent-length: 007\r\n") + "1234567", {"GET /? [1234567]"}},
      {get("/", "X: \xC3\xA4\xFF\r\n"), {"GET /? []"}},
      {get("/", "tRANSFER-eNCODING: Chunked\r\n") + "1\r\nx\r\n0\r\n\r\n", {"GET /? [x]"}},
  };
  for (const auto& [requests, calls] : cases) {
    SCOPED_TRACE(requests);
    Exchange exchange;
    EXPECT_TRUE(exchange.send(requests));
    EXPECT_EQ(exchange.calls, calls);
    std::string answers;
    for (const std::string& call : calls) {
      answers += answer_to(call);
    }
    EXPECT_EQ(exchange.output, answers);
    EXPECT_FALSE(exchange.connection->finished());
    EXPECT_TRUE(same_however_cut(requests));
  }
}

TEST(Http1, GivesTheRouterNamesInLowerCaseAndTheHostOfTheTarget) {
  Exchange exchange;
  exchange.at_once = false;
  exchange.send("GET http://b:1/ HTTP/1.1\r\nHost: a\r\nX-Ab: \t C d\t \r\nx-ab: e\r\n\r\n");
  const serve::Headers headers = {{"host", "b:1"}, {"x-ab", "C d"}, {"x-ab", "e"}};
  ASSERT_NE(exchange.pending, nullptr);
  EXPECT_EQ(exchange.pending->headers, headers);
  EXPECT_EQ(exchange.pending->peer, "192.0.2.1 5000");
  EXPECT_EQ(exchange.pending->connection, 7U);
}

TEST(Http1, RefusesWhatTwoReadersCouldReadDifferently) {
  const std::string nul("\0", 1);
  const std::pair<int, std::string> cases[] = {
      // which body
      {400, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n"},
      {400, "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nContent-Length: 1\r\n\r\n"},
      {400, "POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n"},
      {400, get("/", "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n")},
      {400, get("/", "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n")},
      {501, get("/", "Transfer-Encoding: gzip, chunked\r\n")},
      {501, get("/", "Transfer-Encoding: chunked, identity\r\n")},
      {501, get("/", "Transfer-Encoding: chunked, chunked\r\n")},
      {501, get("/", "Transfer-Encoding: xchunked\r\n")},
      {501, get("/", "Transfer-Encoding: \"chunked\"\r\n")},
      {501, get("/", "Transfer-Encoding: chunked;a\r\n")},
      {501, get("/", "Transfer-Encoding: identity\r\n")},
      {501, get("/", "Transfer-Encoding:\r\n")},
      {400, get("/",
                "Transfer-Encoding: \x0B"
                "chunked\r\n")},
      {400, get("/", "Content-Length: 1\r\nContent-Length: 2\r\n")},
      {400, get("/", "Content-Length: 1\r\nContent-Length: 1\r\n")},
      {400, get("/", "Content-Length: 1, 1\r\n")},
      {400, get("/", "Content-Length: +1\r\n")},
      {400, get("/", "Content-Length: -1\r\n")},
      {400, get("/", "Content-Length: 0x1\r\n")},
      {400, get("/", "Content-Length: 1 1\r\n")},
      {400, get("/", "Content-Length: 1.0\r\n")},
      {400, get("/", "Content-Length:\r\n")},
      {400, get("/", "Content-Length: 18446744073709551616\r\n")},
      {413, get("/", "Content-Length: 18446744073709551615\r\n")},
      // which header
      {400, get("/", "Content-Length : 1\r\n")},
      {400, get("/", "Content-Length\t: 1\r\n")},
      {400, get("/", " Content-Length: 1\r\n")},
      {400, get("/", "X: a\r\n b\r\n")},
      {400, get("/", "X: a\r\n\tb\r\n")},
      {400, get("/", ": a\r\n")},
      {400, get("/", "no colon\r\n")},
      {400, get("/", "X(: a\r\n")},
      {400, get("/", "X\xC3\xA4: a\r\n")},
      {400, get("/", "X: a" + nul + "\r\n")},
      {400, get("/", "X" + nul + ": a\r\n")},
      {400, get("/", "X: a\x01\r\n")},
      {400, get("/", "X: a\x7F\r\n")},
      // which line
      {400, get("/", "X: a\nTransfer-Encoding: chunked\r\n")},
      {400, get("/", "X: a\rTransfer-Encoding: chunked\r\n")},
      {400, get("/", "X: a\r\r\n")},
      {400, "GET / HTTP/1.1\nHost: a\r\n\r\n"},
      {400, "GET / HTTP/1.1\r\nHost: a\r\n\n"},
      {400, "GET / HTTP/1.1\r\nHost: a\n\r\n"},
      {400, "\n" + get("/")},
      {400, repeated("\r\n", 5) + get("/")},
      {400, " \r\n" + get("/")},
      // which request
      {400, " GET / HTTP/1.1\r\n"},
      {400, "GET  / HTTP/1.1\r\n"},
      {400, "GET /  HTTP/1.1\r\n"},
      {400, "GET / HTTP/1.1 \r\n"},
      {400, "GET /\tHTTP/1.1\r\n"},
      {400, "GET\t/ HTTP/1.1\r\n"},
      {400, "GET / a HTTP/1.1\r\n"},
      {400, "GET /\r\n"},
      {400, "GET\r\n"},
      {400, "G(T / HTTP/1.1\r\n"},
      {400, "GET /\x80 HTTP/1.1\r\n"},
      {400, "GET /" + nul + " HTTP/1.1\r\n"},
      {400, "GET /\x7F HTTP/1.1\r\n"},
      {400, "GET /a#b HTTP/1.1\r\n"},
      {400, "GET a HTTP/1.1\r\n"},
      {400, "GET ?a HTTP/1.1\r\n"},
      {400, "GET * HTTP/1.1\r\n"},
      {400, "GET http:///a HTTP/1.1\r\n"},
      {400, "GET http://u@b/ HTTP/1.1\r\n"},
      {400, "GET ftp://b/ HTTP/1.1\r\n"},
      {400, "CONNECT a:1 HTTP/1.1\r\n"},
      {400, "GET / http/1.1\r\n"},
      {400, "GET / HTTPS/1.1\r\n"},
      {505, "GET / HTTP/1.2\r\n"},
      {505, "GET / HTTP/1.10\r\n"},
      {505, "GET / HTTP/0.9\r\n"},
      {505, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"},
      {400, std::string("\x16\x03\x01\x02\0\x01\0\x01\xFC\x03\x03\n", 12)},
      // which host
      {400, "GET / HTTP/1.1\r\n\r\n"},
      {400, get("/", "Host: a\r\n")},
      {400, "GET / HTTP/1.0\r\nHost: a\r\nHost: b\r\n\r\n"},
      {400, "GET / HTTP/1.1\r\nHost: a b\r\n\r\n"},
      {400, "GET / HTTP/1.1\r\nHost: u@a\r\n\r\n"},
      {400, "GET / HTTP/1.1\r\nHost: a/b\r\n\r\n"},
      {400, "GET / HTTP/1.1\r\nHost: a, b\r\n\r\n"},
      // which chunk
      {400, chunked("\r\n")},
      {400, chunked("g\r\n")},
      {400, chunked("+1\r\n")},
      {400, chunked("-1\r\n")},
      {400, chunked("0x1\r\n")},
      {400, chunked(" 1\r\n")},
      {400, chunked("1 \r\n")},
      {400, chunked("1 ;a\r\n")},
      {400, chunked("1_0\r\n")},
      {400, chunked("1\n")},
      {400, chunked("1;a\x01\r\n")},
      {400, chunked("1;a\nb\r\n")},
      {400, chunked("1;a\rb\r\n")},
      {400, chunked("10000000000000000\r\n")},
      {413, chunked("ffffffffffffffff\r\n")},
      {413, chunked("1\r\nx\r\nffffffffffffffff\r\n")},
      {400, chunked("1\r\nxy\r\n")},
      {400, chunked("1\r\nx\n0\r\n\r\n")},
      {400, chunked("1\r\nx0\r\n\r\n")},
      {400, chunked("2\r\nx\r\n0\r\n\r\n")},
      {400, chunked("0\r\nA : b\r\n\r\n")},
      {400, chunked("0\r\n b\r\n\r\n")},
      {400, chunked("0\r\nA: b\n\r\n")},
      // what is expected
      {417, get("/", "Expect: 200-ok\r\n")},
      // too much (a head may have 600 bytes there)
      {431, get("/" + std::string(600, 'a'))},
      {431, std::string(601, 'a')},
      {431, get("/", "A: " + std::string(600, 'a') + "\r\n")},
      {431, chunked("1;" + std::string(600, 'a') + "\r\n")},
      {431, chunked(repeated("1;" + std::string(100, 'a') + "\r\nx\r\n", 6))},
      {431, chunked("0\r\n" + repeated("A: b\r\n", 101))},
      {413, post(std::string(41, 'a'))},
      {413, chunked(repeated("1\r\nx\r\n", 41))},
  };
  for (const auto& [status, requests] : cases) {
    SCOPED_TRACE(requests);
    Limits limits;
    limits.header = 600;
    limits.body = 40;
    Exchange exchange(limits);
    exchange.send(requests);
    EXPECT_EQ(exchange.status(), status);
    EXPECT_EQ(exchange.output.find("content-length: "), exchange.output.rfind("content-length: ")) << "one answer";
    EXPECT_TRUE(exchange.calls.empty());
    EXPECT_TRUE(exchange.closing() || requests.find("HTTP/1.0") != std::string::npos);
    exchange.send(get("/"));
    EXPECT_TRUE(exchange.calls.empty()) << "what comes behind it is no request";
    EXPECT_EQ(exchange.admission.bytes(), 0U);
    EXPECT_TRUE(same_however_cut(requests));
    EXPECT_TRUE(same_however_cut(get("/first") + requests));
  }
}

TEST(Http1, ReadsHeadsAndTrailersUpToTheLimit) {
  Limits limits;
  limits.header = 300;
  const auto filled = [&](std::string head, std::size_t size) {
    head.insert(head.size() - 2, "a: " + std::string(size - head.size() - 5, 'b') + "\r\n");
    return head;
  };
  for (const std::string& request :
       {filled(get("/"), 300), chunked("0\r\n" + filled("\r\n", 300)), "\r\n" + filled(get("/"), 300)}) {
    SCOPED_TRACE(request);
    Exchange exchange(limits);
    exchange.send(request);
    EXPECT_EQ(exchange.status(), 200);
  }
  for (const std::string& request : {filled(get("/"), 301), chunked("0\r\n" + filled("\r\n", 301))}) {
    SCOPED_TRACE(request);
    Exchange exchange(limits);
    exchange.send(request);
    EXPECT_EQ(exchange.status(), 431);
  }
}

TEST(Http1, RefusesMoreThan128Headers) {
  std::string headers;
  for (int number = 0; number < 127; ++number) {
    headers += "a: b\r\n";
  }
  Exchange exchange;
  exchange.send(get("/", headers));
  EXPECT_EQ(exchange.status(), 200);
  exchange.output.clear();
  exchange.send(get("/", headers + "c: d\r\n"));
  EXPECT_EQ(exchange.status(), 431);
}

TEST(Http1, AllowsManySmallChunksAndTrailers) {
  Exchange exchange;
  EXPECT_TRUE(exchange.send(chunked(repeated("1\r\nx\r\n", 50'000) + "0\r\n" + repeated("a: b\r\n", 1000) + "\r\n")));
  ASSERT_EQ(exchange.calls.size(), 1U);
  EXPECT_EQ(exchange.calls[0], "POST /c? [" + std::string(50'000, 'x') + "]");
}

TEST(Http1, RefusesPagesOfOtherSites) {
  struct Case {
    bool refused;
    std::string host, headers, peer;
  };
  const std::string here = "127.0.0.1 5000";
  const std::string there = "192.0.2.1 5000";
  const Case cases[] = {
      {false, "models:8000", "", here},
      {false, "localhost:8000", "Origin: http://localhost:8000\r\n", here},
      {false, "LOCALHOST:8000", "Origin: HTTP://localhost:8000\r\n", "::1 5000"},
      {false, "127.0.0.1:8000", "Origin: http://127.0.0.1:8000\r\n", here},
      {false, "[::1]:8000", "Origin: http://[::1]:8000\r\n", "::1 5000"},
      {false, "models", "Origin: https://models\r\nSec-Fetch-Site: same-origin\r\n", there},
      {false, "models", "Sec-Fetch-Site: none\r\n", there},
      {true, "localhost:8000", "Origin: http://evil.example\r\n", here},
      {true, "localhost:8000", "Origin: http://localhost:3000\r\n", here},
      {true, "localhost:8000", "Origin: http://localhost\r\n", here},
      {true, "models", "Origin: null\r\n", there},
      {true, "models", "Origin:\r\n", there},
      {true, "models", "Origin: http://models.evil.example\r\n", there},
      {true, "models", "Sec-Fetch-Site: cross-site\r\n", there},
      {true, "evil.example:8000", "Origin: http://evil.example:8000\r\n", here},
      {true, "evil.example:8000", "Origin: http://evil.example:8000\r\n", "::1 5000"},
      {true, "1.evil.example", "Origin: http://1.evil.example\r\n", "::ffff:127.0.0.1 5000"},
  };
  for (const Case& each : cases) {
    SCOPED_TRACE(each.host + " " + each.headers + each.peer);
    Exchange exchange({}, each.peer);
    exchange.send("POST /unload HTTP/1.1\r\nHost: " + each.host + "\r\n" + each.headers + "Content-Length: 1\r\n\r\nx");
    EXPECT_EQ(exchange.status(), each.refused ? 403 : 200);
    EXPECT_EQ(exchange.begun.empty(), each.refused);
  }
}

}  // namespace
}  // namespace ortmulti::tests::http1
