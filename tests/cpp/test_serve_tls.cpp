// TLS around a connection of HTTP/1.1, with OpenSSL's own client. Their bytes go to and fro in memory, and the clock is
// the test's.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/error.hpp"
#include "core/serve/nghttp2.hpp"
#include "core/serve/tls.hpp"
#include "http1_exchange.hpp"
#include "test_support.hpp"

namespace ortmulti::tests::http1 {
namespace {

using namespace std::chrono_literals;
using serve::Bio;
using serve::OpenSsl;
using serve::Ssl;
using serve::SslContext;
using serve::SslMethod;
using serve::TlsContext;

// Made for this test with `openssl req -x509`, until the year 2126: they guard nothing.
constexpr const char* certificate_pem = R"(-----BEGIN CERTIFICATE-----
MIIBnDCCAUGgAwIBAgIUftZHfCGwpuGxTZnpjNPg7TJxckEwCgYIKoZIzj0EAwIw
FDESMBAGA1UEAwwJbG9jYWxob3N0MCAXDTI2MTEzMDExMjcxM1oYDzIxMjYxMTA2
MTEyNzEzWjAUMRIwEAYDVQQDDAlsb2NhbGhvc3QwWTATBgcqhkjOPQIBBggqhkjO
PQMBBwNCAATsl38BRpAdqMR2FNuPYtcfz5+YgUxD6vrxWTVPOVaqOVjBZN77M6eT
xBXzeImM5VodRM+Qed0WJXsBjOSnceI2o28wbTAdBgNVHQ4EFgQUXsrWyFXMegkY
9th3Jn0rqdP34OUwHwYDVR0jBBgwFoAUXsrWyFXMegkY9th3Jn0rqdP34OUwDwYD
VR0TAQH/BAUwAwEB/zAaBgNVHREEEzARgglsb2NhbGhvc3SHBH8AAAEwCgYIKoZI
zj0EAwIDSQAwRgIhAJhX97dLaNyimLwgPd/2MiMky8pfuokpiBhCPR7opBWVAiEA
5ZwALw5RGGwvzLZm9eN60TmgfqvCX36o6Gqt7JYL7i4=
-----END CERTIFICATE-----
)";
constexpr const char* key_pem = R"(-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQg4mXtRJXZeSdeC0bc
t6CBu6N9FIewI2gQscMfQSV+M66hRANCAATsl38BRpAdqMR2FNuPYtcfz5+YgUxD
6vrxWTVPOVaqOVjBZN77M6eTxBXzeImM5VodRM+Qed0WJXsBjOSnceI2
-----END PRIVATE KEY-----
)";
constexpr const char* other_key_pem = R"(-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQg0qP+nXwXxH9ruJGo
0b/wfe5ERqIsgigKmylj/w9IzJqhRANCAATBlorr+gLrlVzr0DTMkEWTvILPDSAD
27/xqVZsYWiE3afSLyGPrJvYrd3Z0sDmT3sFpwBRrRRZSpd3OnOuyn28
-----END PRIVATE KEY-----
)";
constexpr const char* encrypted_key_pem = R"(-----BEGIN ENCRYPTED PRIVATE KEY-----
MIHsMFcGCSqGSIb3DQEFDTBKMCkGCSqGSIb3DQEFDDAcBAiiky0PxrM6nQICCAAw
DAYIKoZIhvcNAgkFADAdBglghkgBZQMEASoEEDitZdQQZIthoKmNL8dpaJMEgZAB
dBsjxJdEBcVZcSs0gbMzQio5u8Cr6VEWBj/vteuBbcYmcmoHWPyCZ668LOLgkpEK
JvD85rKh5QHXMJT7SM6E3ZDuP27/f73uH0I7hyyoeFbgGWUnW/MPUA+e0nKezmWS
J85xBI1Juk3+j2Hz2bdsVZXJAu8vepXu/WynvktNbnyr5d0RYyWQekwyA6MXwfc=
-----END ENCRYPTED PRIVATE KEY-----
)";

constexpr int tls_1_1 = 0x0302;
constexpr int tls_1_2 = 0x0303;
constexpr int tls_1_3 = 0x0304;

template <typename Function>
Function client_function(const char* name) {
  return reinterpret_cast<Function>(dlsym(dlopen("libssl.so.3", RTLD_NOW), name));
}

/// A client's side of TLS.
class Client {
 public:
  struct Options {
    std::vector<std::string> protocols = {"http/1.1"};
    int version = tls_1_3;
  };

  explicit Client(const Options& options)
      : context_(make_context(options.version)),
        ssl_(tls_.ssl_new(context_)),
        in_(tls_.bio_new(tls_.bio_s_mem())),
        out_(tls_.bio_new(tls_.bio_s_mem())) {
    tls_.ssl_set0_rbio(ssl_, in_);
    tls_.ssl_set0_wbio(ssl_, out_);
    client_function<void (*)(Ssl*)>("SSL_set_connect_state")(ssl_);
    std::string names;
    for (const std::string& protocol : options.protocols) {
      (names += static_cast<char>(protocol.size())) += protocol;
    }
    client_function<int (*)(Ssl*, const char*, unsigned)>("SSL_set_alpn_protos")(ssl_, names.data(),
                                                                                 static_cast<unsigned>(names.size()));
    shake_hands();
  }
  ~Client() {
    tls_.ssl_free(ssl_);
    tls_.ssl_ctx_free(context_);
  }
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  void shake_hands() { shaken_ = succeeds(tls_.ssl_do_handshake(ssl_)) || shaken_; }
  bool shaken() const { return shaken_; }
  void write(std::string_view text) {
    ASSERT_TRUE(succeeds(tls_.ssl_write(ssl_, text.data(), static_cast<int>(text.size()))));
  }
  /// Says that nothing more comes.
  void close() { tls_.ssl_shutdown(ssl_); }
  void ask_for_new_keys() {
    client_function<int (*)(Ssl*, int)>("SSL_key_update")(ssl_, 1);
    succeeds(tls_.ssl_do_handshake(ssl_));
  }
  void renegotiate() {
    client_function<int (*)(Ssl*)>("SSL_renegotiate")(ssl_);
    succeeds(tls_.ssl_do_handshake(ssl_));
  }

  /// Encrypted bytes for the server.
  std::string take() {
    std::string bytes(tls_.bio_ctrl_pending(out_), '\0');
    tls_.bio_read(out_, bytes.data(), static_cast<int>(bytes.size()));
    return bytes;
  }
  /// Encrypted bytes from the server.
  void give(std::string_view bytes) {
    tls_.bio_write(in_, bytes.data(), static_cast<int>(bytes.size()));
    if (!shaken_) {
      shake_hands();
    }
    std::array<char, 16384> text{};
    for (int got = 1; shaken_ && got > 0;) {
      tls_.err_clear_error();
      got = tls_.ssl_read(ssl_, text.data(), static_cast<int>(text.size()));
      received.append(text.data(), static_cast<std::size_t>(std::max(got, 0)));
      note(got);
    }
  }
  std::string protocol() const {
    const char* name = nullptr;
    unsigned size = 0;
    client_function<void (*)(const Ssl*, const char**, unsigned*)>("SSL_get0_alpn_selected")(ssl_, &name, &size);
    return {name == nullptr ? "" : name, size};
  }

  std::string received;
  std::string error;    ///< Empty: there is none.
  bool closed = false;  ///< The server said that nothing more comes.

 private:
  SslContext* make_context(int version) const {
    SslContext* const context = tls_.ssl_ctx_new(client_function<const SslMethod* (*)()>("TLS_client_method")());
    client_function<int (*)(SslContext*, const char*)>("SSL_CTX_set_cipher_list")(context, "ALL:@SECLEVEL=0");
    constexpr int least = 123;
    constexpr int most = 124;
    tls_.ssl_ctx_ctrl(context, least, version, nullptr);
    tls_.ssl_ctx_ctrl(context, most, version, nullptr);
    return context;
  }
  bool succeeds(int result) {
    note(result);
    return result > 0;
  }
  void note(int result) {
    const int kind = result > 0 ? 0 : tls_.ssl_get_error(ssl_, result);
    closed = closed || kind == 6;
    if (kind == 1 && error.empty()) {
      std::array<char, 256> text{};
      tls_.err_error_string_n(tls_.err_get_error(), text.data(), text.size());
      error = text.data();
    }
    tls_.err_clear_error();
  }

  const OpenSsl& tls_ = *serve::find_openssl(nullptr);
  SslContext* const context_;
  Ssl* const ssl_;
  Bio* const in_;
  Bio* const out_;
  bool shaken_ = false;
};

std::shared_ptr<const TlsContext> context_of(const std::string& protocol) {
  const TemporaryFolder folder;
  return std::make_shared<TlsContext>(folder.write("certificate.pem", certificate_pem),
                                      folder.write("key.pem", key_pem), protocol);
}

/// A client and a server, with the bytes between them.
class Link {
 public:
  explicit Link(const Client::Options& options = {}, const Limits& limits = {},
                const std::string& protocol = "http/1.1")
      : exchange(limits), client(options) {
    exchange.connection = make_tls(context_of(protocol), std::move(exchange.connection), limits, exchange.now);
  }

  Connection& connection() const { return *exchange.connection; }

  /// What the client sends reaches the server, in reads of so many bytes at most, as far as that reads.
  void to_server(std::size_t most = everything) {
    sent += client.take();
    while (begin < sent.size() && !connection().finished()) {
      const auto room = connection().room();
      if (room.empty()) {
        return;
      }
      const std::size_t size = std::min({room.size(), sent.size() - begin, most});
      std::memcpy(room.data(), sent.data() + begin, size);
      begin += size;
      connection().received(size, exchange.now);
    }
  }
  /// Returns how many bytes it were.
  std::size_t to_client(std::size_t most = everything) {
    exchange.take(most);
    client.give(exchange.output);
    return std::exchange(exchange.output, {}).size();
  }
  void run(std::size_t most = everything) {
    std::size_t moved = 1;
    while (moved > 0) {
      const std::size_t before = begin;
      to_server(most);
      moved = begin - before + to_client();
    }
  }
  bool has_output() const { return exchange.has_output(); }

  Exchange exchange;
  Client client;
  std::string sent;
  std::size_t begin = 0;
};

TEST(Tls, AnswersClientsOfBothVersions) {
  for (const int version : {tls_1_2, tls_1_3}) {
    for (const auto& protocols : {std::vector<std::string>{"http/1.1"}, {"h2", "http/1.1"}, {}}) {
      Link link({protocols, version});
      link.run();
      EXPECT_TRUE(link.client.shaken());
      EXPECT_EQ(link.client.protocol(), protocols.empty() ? "" : "http/1.1");
      link.client.write(get("/1") + get("/2"));
      link.run();
      EXPECT_EQ(link.client.received, answer_to("GET /1? []") + answer_to("GET /2? []"));
      EXPECT_FALSE(link.connection().finished());
    }
  }
}

TEST(Tls, RefusesClientsOfOtherProtocolsByAnAlert) {
  for (const auto& [ours, theirs] : {std::pair{"http/1.1", "h2"}, {"h2", "http/1.1"}, {"h2", "h"}}) {
    Link link({{theirs, "x"}}, {}, ours);
    link.run();
    EXPECT_FALSE(link.client.shaken());
    EXPECT_NE(link.client.error.find("no application protocol"), std::string::npos) << link.client.error;
    EXPECT_TRUE(link.connection().finished());
    EXPECT_FALSE(link.has_output());
  }
}

TEST(Tls, RefusesOldVersions) {
  Link link({{}, tls_1_1});
  link.run();
  EXPECT_NE(link.client.error.find("alert protocol version"), std::string::npos) << link.client.error;
  EXPECT_TRUE(link.connection().finished());
}

TEST(Tls, TakesBytesHoweverTheyAreCut) {
  const std::string request = post("body") + get("/next");
  const std::string answer = answer_to("POST /p? [body]") + answer_to("GET /next? []");
  for (const std::size_t most : {1, 2, 3, 7, 100}) {
    Link link;
    link.run(most);
    link.client.write(request);
    link.client.close();
    link.run(most);
    EXPECT_EQ(link.client.received, answer) << "in pieces of " << most;
    EXPECT_TRUE(link.client.closed);
  }
  Link whole;
  whole.run();
  const std::size_t handshake = whole.begin;
  for (std::size_t cut = 1; cut < handshake; ++cut) {
    Link link;
    link.to_server(cut);
    link.run();
    EXPECT_TRUE(link.client.shaken()) << "cut at " << cut;
  }
}

TEST(Tls, SaysTheSameToAClientThatReadsByteByByte) {
  Link link;
  link.to_server();
  while (link.to_client(1) > 0) {
    link.to_server();
  }
  link.client.write(get("/1"));
  link.to_server();
  while (link.to_client(1) > 0) {
  }
  EXPECT_EQ(link.client.received, answer_to("GET /1? []"));
}

TEST(Tls, PassesLargeBodiesBothWays) {
  std::string body;
  for (std::uint32_t i = 0; body.size() < (std::size_t{8} << 20); ++i) {
    body += std::to_string(i * 2654435761U);
  }
  for (const int version : {tls_1_2, tls_1_3}) {
    Link link({{}, version});
    link.run();
    link.client.write(post(body));
    link.run();
    ASSERT_EQ(link.exchange.calls.size(), 1U);
    EXPECT_TRUE(link.client.received == answer_to("POST /p? [" + body + "]"));
    EXPECT_EQ(link.exchange.admission.bytes(), 0U);
  }
}

TEST(Tls, EncryptsLittleAheadAndCountsWhatTheClientTakes) {
  constexpr std::size_t answer_size = std::size_t{1} << 20;
  Link link;
  link.exchange.at_once = false;
  link.run();
  link.client.write(get("/1"));
  link.to_server();
  link.exchange.answer(text_reply(std::string(answer_size, 'x')));
  constexpr std::size_t enough = 70'000;  // it is 64 KiB without what TLS adds
  for (int i = 0; i < 12; ++i) {
    std::array<iovec, 3> parts{};
    ASSERT_EQ(link.connection().to_send(parts), 1U);
    EXPECT_LE(parts[0].iov_len, std::size_t{80} << 10);
    link.exchange.now += 59s;
    link.connection().on_time(link.exchange.now);
    EXPECT_EQ(link.to_client(enough), enough);
    EXPECT_EQ(link.connection().deadline(), link.exchange.now + 60s);
    EXPECT_EQ(link.exchange.admission.bytes(), answer_size);
  }
  link.exchange.now += 59s;
  EXPECT_EQ(link.to_client(1000), 1000U);
  EXPECT_FALSE(link.connection().finished());
  EXPECT_EQ(link.exchange.to_deadline(), 1);
  EXPECT_TRUE(link.connection().finished());
  EXPECT_FALSE(link.has_output());
}

TEST(Tls, ReadsLittleAheadOfWhatIsAnswered) {
  Link link;
  link.exchange.at_once = false;
  link.run();
  const std::size_t before = link.begin;
  const std::string path = "/" + std::string(1000, 'p');
  for (int i = 0; i < 300; ++i) {
    link.client.write(get(path));
  }
  for (int i = 0; i < 300; ++i) {
    link.to_server();
    if (i == 0) {
      EXPECT_LT(link.begin - before, 100'000U);
      EXPECT_TRUE(link.connection().room().empty());
    }
    ASSERT_NE(link.exchange.pending, nullptr) << i;
    link.exchange.answer(text_reply("answer"));
    link.to_client();
  }
  EXPECT_EQ(link.begin, link.sent.size());
  EXPECT_EQ(link.exchange.calls.size(), 300U);
  EXPECT_FALSE(link.connection().room().empty());
}

TEST(Tls, ReadsOnWhenAnAnswerIsTaken) {
  Link link;
  link.exchange.at_once = false;
  link.run();
  const std::string body(25'000, 'b');
  link.client.write(get("/1") + post(body));
  link.to_server();
  EXPECT_EQ(link.begin, link.sent.size()) << "nothing more comes from the client";
  link.exchange.answer(text_reply("answer"));
  EXPECT_EQ(link.exchange.calls.size(), 1U);
  link.to_client();
  EXPECT_EQ(link.exchange.calls, (std::vector<std::string>{"GET /1? []", "POST /p? [" + body + "]"}));
}

TEST(Tls, CutsOffHandshakesThatTakeTooLong) {
  for (const std::size_t bytes : {0, 1, 100, 10'000}) {
    Link link({}, {.receive = Limits::Seconds(5)});
    const std::string hello = link.client.take();
    link.sent = hello.substr(0, bytes);
    link.to_server();
    link.to_client();
    link.exchange.now += 4s;
    link.connection().on_time(link.exchange.now);
    EXPECT_FALSE(link.connection().finished());
    EXPECT_EQ(link.exchange.to_deadline(), 1);
    EXPECT_TRUE(link.connection().finished());
    EXPECT_FALSE(link.has_output());
  }
}

TEST(Tls, RefusesWhatIsNoTls) {
  for (const std::string& text :
       {get("/1"), std::string(5000, '\0'), std::string(5000, '\xff'), "\x16\x03\x01" + std::string(30'000, ' ')}) {
    Link link;
    link.sent = text;
    link.to_server();
    EXPECT_TRUE(link.connection().finished());
    link.exchange.take();
    EXPECT_LT(link.exchange.output.size(), 100U);
    EXPECT_FALSE(link.has_output());
    EXPECT_TRUE(link.exchange.calls.empty());
  }
}

TEST(Tls, WaitsForNobodyWhoTakesNoAlert) {
  Link link({{"h2"}});
  link.to_server();
  EXPECT_TRUE(link.has_output());
  EXPECT_EQ(link.exchange.to_deadline(), 60);
  EXPECT_TRUE(link.connection().finished());
  EXPECT_FALSE(link.has_output());
}

TEST(Tls, RefusesBytesThatWereChanged) {
  for (const int version : {tls_1_2, tls_1_3}) {
    Link link({{}, version});
    link.exchange.at_once = false;
    link.run();
    link.client.write(get("/1"));
    link.run();
    link.client.write(get("/2"));
    link.sent += link.client.take();
    link.sent.back() ^= 1;
    link.run();
    EXPECT_TRUE(link.connection().finished());
    EXPECT_NE(link.client.error.find("bad record mac"), std::string::npos) << link.client.error;
    EXPECT_EQ(link.exchange.begun, std::vector<std::string>{"/1"});
    EXPECT_EQ(link.exchange.left, std::vector<std::string>{"/1"});
  }
}

TEST(Tls, TakesAnEndWithoutNoticeForLost) {
  for (const bool says_so : {false, true}) {
    Link link;
    link.exchange.at_once = false;
    link.run();
    link.client.write(get("/1"));
    if (says_so) {
      link.client.close();
    }
    link.run();
    link.connection().received_end(false, link.exchange.now);
    EXPECT_EQ(link.exchange.left.size(), says_so ? 0U : 1U);
    EXPECT_EQ(link.connection().finished(), !says_so);
    link.exchange.answer(text_reply("answer"));
    EXPECT_EQ(link.has_output(), says_so);
    link.run();
    EXPECT_EQ(link.client.received.ends_with("answer"), says_so);
    EXPECT_EQ(link.client.closed, says_so);
    EXPECT_TRUE(link.connection().finished());
  }
  Link within;
  within.to_server();
  within.connection().received_end(false, within.exchange.now);
  EXPECT_TRUE(within.connection().finished());
  EXPECT_FALSE(within.has_output());
}

TEST(Tls, SaysThatItEnds) {
  Link idle;
  idle.run();
  idle.connection().end(idle.exchange.now);
  EXPECT_FALSE(idle.connection().finished());
  idle.connection().on_time(idle.connection().deadline().value_or(idle.exchange.now));
  EXPECT_TRUE(idle.connection().finished());
  idle.run();
  EXPECT_TRUE(idle.client.closed);
  EXPECT_FALSE(idle.has_output());

  Link asking;
  asking.exchange.at_once = false;
  asking.run();
  asking.client.write(get("/1"));
  asking.run();
  asking.connection().end(asking.exchange.now);
  EXPECT_FALSE(asking.connection().finished());
  asking.exchange.answer(text_reply("answer"));
  asking.run();
  EXPECT_TRUE(asking.client.received.ends_with("answer"));
  EXPECT_TRUE(asking.client.closed);
  EXPECT_TRUE(asking.connection().finished());
}

TEST(Tls, EndsDuringHandshakesOfBothProtocols) {
  for (const bool grpc : {false, true}) {
    if (grpc && !serve::why_no_http2().empty()) {
      GTEST_SKIP() << serve::why_no_http2();
    }
    const std::string protocol = grpc ? "h2" : "http/1.1";
    Exchange exchange;
    Client client({{protocol}});
    const serve::Shared shared{exchange, exchange.admission, exchange.buffers};
    auto inner = (grpc ? serve::make_http2 : serve::make_http1)(shared, "192.0.2.1 5000", 8, exchange.now);
    exchange.connection = make_tls(context_of(protocol), std::move(inner), {}, exchange.now);
    ASSERT_TRUE(exchange.send(client.take()));
    EXPECT_FALSE(exchange.connection->finished());
    exchange.connection->end(exchange.now);
    EXPECT_TRUE(exchange.connection->finished());
  }
}

TEST(Tls, ClosesQuietConnections) {
  Link link;
  link.run();
  EXPECT_EQ(link.exchange.to_deadline(), 75);
  EXPECT_TRUE(link.connection().finished());
  link.run();
  EXPECT_TRUE(link.client.closed);
}

TEST(Tls, DoesNotNegotiateAnew) {
  Link link({{}, tls_1_2});
  link.run();
  link.client.renegotiate();
  link.run();
  EXPECT_NE(link.client.error.find("no renegotiation"), std::string::npos) << link.client.error;
}

TEST(Tls, StopsReadingWhenAnswersToTlsItselfAreNotTaken) {
  Link link;
  link.run();
  bool reads = true;
  for (int i = 0; i < 20'000 && reads; ++i) {
    link.client.ask_for_new_keys();
    link.to_server();
    reads = !link.connection().room().empty();
  }
  EXPECT_FALSE(reads);
  EXPECT_LT(link.to_client(), std::size_t{300} << 10);
  EXPECT_FALSE(link.connection().room().empty());
  link.client.write(get("/1"));
  link.run();
  EXPECT_EQ(link.client.received, answer_to("GET /1? []"));
}

TEST(Tls, NamesTheFileThatItCannotUse) {
  const TemporaryFolder folder;
  const std::string good = folder.write("good.pem", certificate_pem);
  const std::string key = folder.write("key.pem", key_pem);
  const std::string other = folder.write("other.pem", other_key_pem);
  const std::string encrypted = folder.write("encrypted.pem", encrypted_key_pem);
  const std::string garbage = folder.write("garbage.pem", "garbage");
  const auto make = [](const std::string& certificate_file, const std::string& key_file) {
    return [=] { const TlsContext context(certificate_file, key_file, "h2"); };
  };
  constexpr auto invalid = ErrorKind::invalid_argument;
  make(good, key)();
  EXPECT_TRUE(throws(invalid, {"certificate", "absent.pem", "No such file"}, make(folder / "absent.pem", key)));
  EXPECT_TRUE(throws(invalid, {"certificate", "garbage.pem", "no start line"}, make(garbage, key)));
  EXPECT_TRUE(throws(invalid, {"certificate", "key.pem"}, make(key, key)));
  EXPECT_TRUE(throws(invalid, {"private key", "absent.pem", "No such file"}, make(good, folder / "absent.pem")));
  EXPECT_TRUE(throws(invalid, {"private key", "garbage.pem"}, make(good, garbage)));
  EXPECT_TRUE(throws(invalid, {"private key", "other.pem", "good.pem", "key values mismatch"}, make(good, other)));
  EXPECT_TRUE(throws(invalid, {"private key", "encrypted.pem"}, make(good, encrypted)));
}

TEST(Tls, SaysWhatIsMissingOfOpenSsl) {
  std::string reason;
  EXPECT_NE(serve::find_openssl(&reason), nullptr) << reason;
  EXPECT_TRUE(throws(ErrorKind::library, {"TLS needs OpenSSL", "libabsent.so.3", "libssl3"},
                     [] { serve::load_openssl("libabsent.so.3"); }));
  EXPECT_TRUE(throws(ErrorKind::library, {"TLS needs OpenSSL 3", "libc.so.6", "has no", "libssl3"},
                     [] { serve::load_openssl("libc.so.6"); }));
}

}  // namespace
}  // namespace ortmulti::tests::http1
