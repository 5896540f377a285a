// A server of models with real sockets on the loopback.
#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <future>
#include <memory>
#include <mutex>
#include <numeric>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/pool/pool.hpp"
#include "core/pool/runners.hpp"
#include "core/serve/coding.hpp"
#include "core/serve/front.hpp"
#include "core/serve/loop.hpp"
#include "core/serve/nghttp2.hpp"
#include "core/serve/route.hpp"
#include "failing_threads.hpp"
#include "loading.hpp"
#include "test_support.hpp"

namespace ortmulti::serve {
namespace {

using namespace std::chrono_literals;
using tests::throws;
using Seconds = Limits::Seconds;
using Clock = std::chrono::steady_clock;

// Longer than anything here takes: it ends a hang, it measures nothing.
constexpr auto patience = 60s;

// A socket that listens on the loopback, and its port.
std::pair<int, std::uint16_t> listening_socket() {
  const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  if (bind(listener, reinterpret_cast<sockaddr*>(&address), size) != 0 || listen(listener, 1024) != 0 ||
      getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    throw std::runtime_error("cannot listen");
  }
  return {listener, ntohs(address.sin_port)};
}

// Waits until something is so that nobody tells of.
bool becomes(const auto& condition) {
  const auto until = Clock::now() + patience;
  while (!condition()) {
    if (Clock::now() > until) {
      return false;
    }
    std::this_thread::yield();
  }
  return true;
}

struct Answered {
  int status = 0;  // 0: there was none
  std::string head;
  std::string body;
};

// A client that waits for what it gets.
class Client {
 public:
  Client() : socket_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const timeval timeout{std::chrono::seconds(patience).count(), 0};
    setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout);
  }
  explicit Client(std::uint16_t port) : Client() { connected_ = connect_to(port); }
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;
  ~Client() { leave(); }

  bool connect_to(std::uint16_t port) const {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return connect(socket_, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
  }
  bool connected() const { return connected_; }
  void leave() {
    if (socket_ >= 0) {
      ::close(std::exchange(socket_, -1));
    }
  }
  // With an error for the other side.
  void break_off() {
    const linger at_once{1, 0};
    setsockopt(socket_, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
    leave();
  }
  void half_close() const { shutdown(socket_, SHUT_WR); }

  bool send(std::string_view bytes) const {
    while (!bytes.empty()) {
      const ssize_t sent = ::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent <= 0) {
        return false;
      }
      bytes.remove_prefix(static_cast<std::size_t>(sent));
    }
    return true;
  }
  Answered get(const std::string& path, const std::string& headers = "", const std::string& method = "GET") {
    send(method + " " + path + " HTTP/1.1\r\nhost: localhost\r\n" + headers + "\r\n");
    return answer(method != "HEAD");
  }
  Answered post(const std::string& path, const std::string& body, const std::string& headers = "") {
    send("POST " + path + " HTTP/1.1\r\nhost: localhost\r\n" + headers +
         "content-length: " + std::to_string(body.size()) + "\r\n\r\n" + body);
    return answer();
  }
  // The next answer.
  Answered answer(bool with_body = true) {
    constexpr std::string_view blank = "\r\n\r\n";
    constexpr std::string_view length_field = "\r\ncontent-length: ";
    while (received_.find(blank) == std::string::npos) {
      if (!receive()) {
        return {};
      }
    }
    Answered answered;
    const std::size_t end = received_.find(blank) + blank.size();
    answered.head = received_.substr(0, end);
    received_.erase(0, end);
    answered.status = std::stoi(answered.head.substr(answered.head.find(' ') + 1));
    const std::size_t field = answered.head.find(length_field);
    const std::size_t length =
        !with_body || field == std::string::npos ? 0 : std::stoul(answered.head.substr(field + length_field.size()));
    while (received_.size() < length) {
      if (!receive()) {
        return {};
      }
    }
    answered.body = received_.substr(0, length);
    received_.erase(0, length);
    return answered;
  }
  // So many bytes, or fewer at the end.
  std::string bytes(std::size_t count) {
    while (received_.size() < count && receive()) {
    }
    const std::string taken = received_.substr(0, count);
    received_.erase(0, taken.size());
    return taken;
  }
  // Whether the other side has closed, with or without an error, and sent nothing more before.
  bool at_end() { return !receive() && !timed_out_; }
  // The same, without an error.
  bool at_good_end() { return at_end() && !failed_; }

 private:
  bool receive() {
    std::vector<char> part(std::size_t{1} << 18);
    const ssize_t got = recv(socket_, part.data(), part.size(), 0);
    failed_ = got < 0;
    timed_out_ = failed_ && (errno == EAGAIN || errno == EWOULDBLOCK);
    if (got > 0) {
      received_.append(part.data(), static_cast<std::size_t>(got));
    }
    return got > 0;
  }

  int socket_;
  bool connected_ = false;
  bool timed_out_ = false;
  bool failed_ = false;
  std::string received_;
};

// In the place of Python: it keeps calls until a test answers them.
class Others {
 public:
  void take(std::shared_ptr<Call> call) {
    {
      const std::lock_guard lock(mutex_);
      calls_.push_back(std::move(call));
    }
    changed_.notify_all();
  }
  void lose(const std::shared_ptr<Call>& call) {
    {
      const std::lock_guard lock(mutex_);
      gone_.push_back(call);
    }
    changed_.notify_all();
  }
  void answered(Reply reply) {
    {
      const std::lock_guard lock(mutex_);
      answers_.push_back(std::move(reply));
    }
    changed_.notify_all();
  }
  // The calls there are, once they are so many.
  std::vector<std::shared_ptr<Call>> wait_for(std::size_t count) { return wait(calls_, count); }
  std::vector<std::shared_ptr<Call>> wait_for_gone(std::size_t count) { return wait(gone_, count); }
  std::vector<Reply> wait_for_answers(std::size_t count) { return wait(answers_, count); }
  void forget() {
    const std::lock_guard lock(mutex_);
    calls_.clear();
    gone_.clear();
  }

 private:
  template <typename Item>
  std::vector<Item> wait(const std::vector<Item>& list, std::size_t count) {
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(changed_.wait_for(lock, patience, [&] { return list.size() >= count; }));
    return list;
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::shared_ptr<Call>> calls_;
  std::vector<std::shared_ptr<Call>> gone_;
  std::vector<Reply> answers_;
};

Reply text_reply(std::string text, int status = 200) {
  Reply reply;
  reply.status = status;
  reply.body.push_back(piece_of(std::move(text)));
  return reply;
}

class ServeFront : public testing::Test {
 protected:
  ServeFront() {
    options.other = [this](std::shared_ptr<Call> call) { others.take(std::move(call)); };
    options.gone = [this](const std::shared_ptr<Call>& call) { others.lose(call); };
    options.answered = [this](const std::shared_ptr<Call>& /*call*/, Reply reply) {
      others.answered(std::move(reply));
    };
  }

  void start() {
    const auto [listener, listened] = listening_socket();
    port = listened;
    front = std::make_unique<Front>(options, std::vector<int>{listener}, std::vector<int>{});
  }
  // Asks for something that `other` has from now on.
  std::unique_ptr<Client> ask_other(const std::string& path = "/v2/models/slow/infer") {
    auto client = std::make_unique<Client>(port);
    client->send("POST " + path + " HTTP/1.1\r\nhost: localhost\r\ncontent-length: 2\r\n\r\n{}");
    return client;
  }
  std::uint64_t count(const std::string& code) {
    const auto answers = front->answers();
    const auto found = answers.find({"http", code});
    return found == answers.end() ? 0 : found->second;
  }

  Others others;
  Front::Options options;
  std::unique_ptr<Front> front;
  std::uint16_t port = 0;
};

TEST_F(ServeFront, AnswersHealthItself) {
  start();
  Client client(port);
  const Answered live = client.get("/v2/health/live");
  EXPECT_EQ(live.status, 200);
  EXPECT_EQ(live.body, R"({"live":true})");
  EXPECT_EQ(client.get("/v2/health/ready").status, 400);
  EXPECT_EQ(client.get("/health").status, 503);
  front->set_ready(true);
  EXPECT_EQ(client.get("/v2/health/ready").body, R"({"ready":true})");
  const Answered head = client.get("/v2/health/ready", "", "HEAD");
  EXPECT_EQ(head.status, 200);
  const Answered post = client.post("/v2/health/live", "{}");
  EXPECT_EQ(post.status, 405);
  EXPECT_NE(post.head.find("allow: GET, HEAD\r\n"), std::string::npos) << post.head;
  EXPECT_EQ(count("200"), 3U);
  EXPECT_EQ(count("400"), 1U);
  EXPECT_EQ(count("503"), 1U);
  EXPECT_EQ(count("405"), 1U);
}

TEST_F(ServeFront, HandsAllElseToOthersAndBringsTheirAnswer) {
  options.access_log = true;
  start();
  Client client(port);
  auto answered = std::async(std::launch::async, [&] { return client.post("/v2/repository/index?a=1", "{\"x\":1}"); });
  const auto call = others.wait_for(1).front();
  EXPECT_EQ(call->method, "POST");
  EXPECT_EQ(call->path, "/v2/repository/index");
  EXPECT_EQ(call->query, "a=1");
  EXPECT_EQ(call->body.text(), "{\"x\":1}");
  EXPECT_TRUE(call->peer.starts_with("127.0.0.1 ")) << call->peer;
  front->reply(call, text_reply("here"));
  front->reply(call, text_reply("again"));  // which nobody waits for
  EXPECT_EQ(answered.get().body, "here");
  EXPECT_EQ(client.get("/v2/health/live").status, 200);
  const auto log = front->take_access_log();
  ASSERT_EQ(log.size(), 2U);
  EXPECT_EQ(log.front().peer, call->peer);
  EXPECT_EQ(log.front().path, "/v2/repository/index");
  EXPECT_EQ(log.front().status, 200);
  EXPECT_EQ(log.front().bytes, 4U);
  EXPECT_GT(log.front().seconds, 0);
  EXPECT_TRUE(front->take_access_log().empty());
}

TEST_F(ServeFront, AsksForTheTokenBeforeTheBody) {
  options.token = "secret";
  start();
  EXPECT_EQ(Client(port).get("/v2/health/live").status, 200);
  const std::string head = "POST /v2/models/a/infer HTTP/1.1\r\nhost: localhost\r\n";
  for (const char* given :
       {"", "authorization: Bearer secres\r\n", "authorization: Bearer secret1\r\n", "authorization: secret\r\n",
        "authorization: Bearer \r\n", "authorization: Bearersecret\r\n", "authorization: Basic secret\r\n"}) {
    Client client(port);
    client.send(head + given + "content-length: 1000000\r\n\r\n");
    EXPECT_EQ(client.answer().status, 401) << given;
  }
  EXPECT_EQ(count("401"), 7U);
  Client client(port);
  client.send(head + "authorization: Bearer secret\r\ncontent-length: 0\r\n\r\n");
  front->reply(others.wait_for(1).front(), text_reply("good"));
  EXPECT_EQ(client.answer().body, "good");
  Client other(port);  // the scheme has no case
  other.send(head + "authorization: bEARER   secret\r\ncontent-length: 0\r\n\r\n");
  front->reply(others.wait_for(2).back(), text_reply("good"));
  EXPECT_EQ(other.answer().body, "good");
  const Client ready(port);
  ready.send("GET /v2/models/a/ready HTTP/1.1\r\nhost: localhost\r\n\r\n");
  EXPECT_EQ(others.wait_for(3).back()->path, "/v2/models/a/ready");
}

TEST_F(ServeFront, LooksAtOneFormOfAPathForTheToken) {
  options.token = "secret";
  start();
  EXPECT_EQ(Client(port).get("/v2%2Fhealth/l%69ve").status, 200);
  for (const char* path : {"/v2/models/a%2Fversions/ready", "/v2/models/a/versions%2F/ready", "/v2/models%2fa/config",
                           "/v2/models/a%2Fready%2Finfer", "/%76%32/repository/index"}) {
    EXPECT_EQ(Client(port).get(path).status, 401) << path;
  }
  const Client ready(port);
  ready.send("GET /v2/models/a%20b%/%72eady HTTP/1.1\r\nhost: localhost\r\n\r\n");
  EXPECT_EQ(others.wait_for(1).back()->path, "/v2/models/a b%/ready");
}

TEST_F(ServeFront, RefusesOtherNames) {
  options.allowed_hosts = {"example.org", "[::1]"};
  start();
  const auto asked = [&](const std::string& host) {
    Client client(port);
    client.send("POST /v2/models/a/infer HTTP/1.1\r\nhost: " + host + "\r\ncontent-length: 9\r\n\r\n");
    return client.answer().status;
  };
  for (const char* host :
       {"evil.test", "example.org.evil.test", "127.0.0.1", "", "[::2]:80", "[::1", "example.orgx:80"}) {
    EXPECT_EQ(asked(host), 403) << host;
  }
  EXPECT_EQ(Client(port).get("/v2/health/live").status, 200) << "health is for everybody";
  std::size_t there = 0;
  for (const char* host : {"example.org", "Example.ORG:8000", "[::1]:8000", "[::1]"}) {
    const Client client(port);
    client.send(std::string("GET /v2 HTTP/1.1\r\nhost: ") + host + "\r\n\r\n");
    EXPECT_EQ(others.wait_for(++there).size(), there) << host;
  }
}

TEST_F(ServeFront, HandsNoLargeBodiesToOthersButOfInfer) {
  start();
  const std::string large((std::size_t{64} << 10) + 1, ' ');
  for (const char* path : {"/v2/repository/index", "/v2/repository/models/a/load", "/v2/models/a", "/x"}) {
    EXPECT_EQ(Client(port).post(path, large).status, 413) << path;
  }
  Client client(port);
  auto answered = std::async(std::launch::async, [&] { return client.post("/v2/models/a/infer", large); });
  const auto call = others.wait_for(1).front();
  front->reply(call, text_reply("here"));
  EXPECT_EQ(answered.get().body, "here");
}

TEST_F(ServeFront, HandsBodiesAsLongAsJsonToOthersWhereTheyAreAskedFor) {
  options.long_bodies = {"v1/texts", ""};
  options.limits.json = std::size_t{100} << 10;
  start();
  const std::string large((std::size_t{64} << 10) + 1, ' ');
  std::size_t there = 0;
  for (const char* path : {"/v1/texts", "/v1/texts/", "/"}) {
    Client client(port);
    auto answered = std::async(std::launch::async, [&] { return client.post(path, large); });
    const auto call = others.wait_for(++there).back();
    EXPECT_EQ(call->body.size(), large.size());
    front->reply(call, text_reply("here"));
    EXPECT_EQ(answered.get().body, "here") << path;
    EXPECT_EQ(Client(port).post(path, std::string(options.limits.json + 1, ' ')).status, 413) << path;
  }
  EXPECT_EQ(Client(port).post("/v1/text", large).status, 413);
}

TEST_F(ServeFront, RefusesBeyondTheLimitOfRequests) {
  options.limits.concurrent = 2;
  start();
  std::vector<std::unique_ptr<Client>> silent;  // who sends no body takes no place
  for (int i = 0; i < 10; ++i) {
    silent.push_back(std::make_unique<Client>(port));
    silent.back()->send("POST /v2/models/a/infer HTTP/1.1\r\nhost: localhost\r\ncontent-length: 9\r\n\r\n");
  }
  const auto first = ask_other();
  const auto call = others.wait_for(1).front();
  const auto second = ask_other();
  others.wait_for(2);
  const Answered refused = ask_other()->answer();
  EXPECT_EQ(refused.status, 503);
  EXPECT_EQ(refused.body, R"({"error":"2 requests are under way, which is the limit"})");
  EXPECT_EQ(Client(port).get("/v2/health/live").status, 200);
  front->reply(call, text_reply("done"));
  EXPECT_EQ(first->answer().status, 200);
  const auto third = ask_other();
  EXPECT_EQ(others.wait_for(3).size(), 3U);
  silent.front()->send("123456789");
  EXPECT_EQ(silent.front()->answer().status, 503);
}

TEST_F(ServeFront, TellsOthersThatAClientHasGone) {
  start();
  for (const bool with_error : {true, false}) {
    const auto client = ask_other();
    const auto call = others.wait_for(1).front();
    EXPECT_EQ(front->admission().requests(), 1U);
    with_error ? client->break_off() : client->leave();
    EXPECT_EQ(others.wait_for_gone(1).front(), call);
    front->reply(call, text_reply("late"));  // is ignored
    EXPECT_EQ(Client(port).get("/v2/health/live").status, 200);
    others.forget();
  }
  EXPECT_EQ(count("200"), 2U);
  EXPECT_TRUE(becomes([&] { return front->admission().connections() == 0 && front->admission().requests() == 0; }));
}

TEST_F(ServeFront, SeesWhoGoesWhileMoreIsSentThanIsRead) {
  start();
  const auto client = ask_other();
  const auto call = others.wait_for(1).front();
  std::string more;
  for (int i = 0; i < 2000; ++i) {
    more += "GET /v2/health/live HTTP/1.1\r\nhost: localhost\r\n\r\n";
  }
  EXPECT_TRUE(client->send(more));
  EXPECT_EQ(Client(port).get("/v2/health/live").status, 200);
  client->leave();
  EXPECT_EQ(others.wait_for_gone(1).front(), call);
}

TEST_F(ServeFront, AnswersWhatWasSentAtOnceInItsOrder) {
  start();
  Client client(port);
  constexpr int many = 3000;
  std::string questions;
  for (int i = 0; i < many; ++i) {
    questions +=
        "GET /v2/health/" + std::string(i % 3 == 0 ? "live" : "ready") + " HTTP/1.1\r\nhost: localhost\r\n\r\n";
  }
  auto sent = std::async(std::launch::async, [&] { return client.send(questions); });
  for (int i = 0; i < many; ++i) {
    ASSERT_EQ(client.answer().status, i % 3 == 0 ? 200 : 400) << i;
  }
  EXPECT_TRUE(sent.get());
  client.send("GET /v2/health/live HTTP/1.1\r\nhost: localhost\r\n\r\n");
  client.half_close();
  EXPECT_EQ(client.answer().status, 200);
  EXPECT_TRUE(client.at_end());
}

TEST_F(ServeFront, AnswersOthersWhileAClientReadsSlowly) {
  start();
  constexpr std::size_t size = std::size_t{32} << 20;
  std::string large(size, 'x');
  for (std::size_t i = 0; i < size; i += 1000) {
    large[i] = static_cast<char>('a' + i / 1000 % 26);
  }
  std::vector<std::unique_ptr<Client>> slow;
  slow.reserve(4);
  for (int i = 0; i < 4; ++i) {
    slow.push_back(ask_other());
  }
  for (const auto& call : others.wait_for(4)) {
    front->reply(call, text_reply(large));
  }
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(Client(port).get("/v2/health/live").status, 200);
  }
  for (const auto& client : slow) {
    EXPECT_TRUE(client->answer().body == large);
  }
}

TEST_F(ServeFront, RefusesAnswersBeyondTheBudget) {
  options.limits.memory = std::size_t{20} << 20;
  start();
  std::vector<std::unique_ptr<Client>> clients;
  clients.reserve(3);
  for (int i = 0; i < 3; ++i) {
    clients.push_back(ask_other());
  }
  std::vector<std::shared_ptr<Call>> calls = others.wait_for(3);
  const std::string large(std::size_t{16} << 20, 'x');
  for (const auto& call : calls) {
    front->reply(call, text_reply(large));
  }
  calls.clear();
  others.forget();
  EXPECT_TRUE(becomes([&] { return front->admission().requests() == 0; }));
  EXPECT_LE(front->admission().bytes(), options.limits.memory);
  EXPECT_EQ(Client(port).get("/v2/health/live").status, 200);
  std::vector<int> statuses;
  statuses.reserve(clients.size());
  for (const auto& client : clients) {
    statuses.push_back(client->answer().status);
  }
  std::ranges::sort(statuses);
  EXPECT_EQ(statuses, (std::vector{200, 503, 503}));
}

TEST_F(ServeFront, CutsOffWhoDoesNotTakeItsAnswer) {
  options.limits.send = Seconds(0.2);
  start();
  const auto client = ask_other();
  front->reply(others.wait_for(1).front(), text_reply(std::string(std::size_t{32} << 20, 'x')));
  others.forget();
  EXPECT_TRUE(becomes([&] { return front->admission().connections() == 0; }));
  EXPECT_EQ(client->answer().status, 0);
}

TEST_F(ServeFront, ClosesIdleConnections) {
  options.limits.idle = Seconds(0.1);
  start();
  Client silent(port);
  Client used(port);
  EXPECT_EQ(used.get("/v2/health/live").status, 200);
  EXPECT_TRUE(silent.at_end());
  EXPECT_TRUE(used.at_end());
}

TEST_F(ServeFront, HasTimesOfAnyLength) {
  options.limits.receive = options.limits.send = options.limits.idle = Seconds(1e10);
  options.limits.end = Seconds(0.1);
  start();
  Client client(port);
  EXPECT_EQ(client.get("/v2/health/live").status, 200);
  client.send("POST /v2/models/slow/infer HTTP/1.1\r\n");
  front->end();
  EXPECT_EQ(client.answer().status, 503);
  options.limits.end = Seconds(1e10);
  start();
  const auto waiting = ask_other();
  const auto call = others.wait_for(1).front();
  auto ended = std::async(std::launch::async, [this] { front->end(); });
  EXPECT_TRUE(becomes([&] { return !Client(port).connected(); }));
  front->reply(call, text_reply("in time"));
  EXPECT_EQ(waiting->answer().body, "in time");
  ended.get();
}

TEST_F(ServeFront, SharesManyConnectionsBetweenLoops) {
  options.loops = 3;
  start();
  constexpr int each = 100;
  std::atomic<int> good{0};
  tests::in_threads(4, [&](int) {
    std::vector<std::unique_ptr<Client>> clients;
    clients.reserve(each);
    for (int i = 0; i < each; ++i) {
      clients.push_back(std::make_unique<Client>(port));
    }
    for (int round = 0; round < 3; ++round) {
      for (const auto& client : clients) {
        client->send("GET /v2/health/live HTTP/1.1\r\nhost: localhost\r\n\r\n");
      }
      for (const auto& client : clients) {
        good += client->answer().status == 200 ? 1 : 0;
      }
    }
  });
  EXPECT_EQ(good.load(), 4 * each * 3);
  EXPECT_EQ(count("200"), 4U * each * 3);
  EXPECT_TRUE(becomes([&] { return front->admission().connections() == 0; }));
  // Each loop has a share, whichever accepts: numbers of connections are the loops' in turn.
  std::vector<std::unique_ptr<Client>> clients;
  clients.reserve(9);
  for (int i = 0; i < 9; ++i) {
    clients.push_back(ask_other());
  }
  std::vector<int> of_loop(3);
  for (const auto& call : others.wait_for(9)) {
    ++of_loop[call->connection % 3];
    front->reply(call, text_reply("good"));
  }
  EXPECT_GT(std::ranges::min(of_loop), 0);
  for (const auto& client : clients) {
    EXPECT_EQ(client->answer().status, 200);
  }
}

TEST_F(ServeFront, ClosesConnectionsBeyondTheLimitAtOnce) {
  options.limits.connections = 3;
  start();
  std::vector<std::unique_ptr<Client>> clients;
  clients.reserve(3);
  for (int i = 0; i < 3; ++i) {
    clients.push_back(std::make_unique<Client>(port));
    EXPECT_EQ(clients.back()->get("/v2/health/live").status, 200);
  }
  EXPECT_TRUE(Client(port).at_end());
  EXPECT_EQ(clients.front()->get("/v2/health/live").status, 200);
  clients.pop_back();
  EXPECT_TRUE(becomes([&] { return front->admission().connections() == 2; }));
  EXPECT_EQ(Client(port).get("/v2/health/live").status, 200);
}

TEST_F(ServeFront, AnswersARefusedClientThatStillSends) {
  options.token = "secret";
  start();
  Client client(port);
  client.send("POST /v2/models/a/infer HTTP/1.1\r\nhost: localhost\r\ncontent-length: 8000000\r\n\r\n");
  client.send(std::string(8'000'000, 'x'));
  EXPECT_EQ(client.answer().status, 401);
}

TEST_F(ServeFront, AnswersAlthoughMoreIsSentThanItReads) {
  start();
  for (int i = 0; i < 20; ++i) {
    Client client(port);
    EXPECT_TRUE(client.send("GET /v2/health/live HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n" +
                            std::string(std::size_t{10} << 20, 'x')));
    EXPECT_EQ(client.answer().status, 200);
    EXPECT_TRUE(client.at_good_end());
  }
  EXPECT_TRUE(becomes([&] { return front->admission().connections() == 0; }));
}

TEST_F(ServeFront, EndsWhenAllIsAnswered) {
  start();
  front->set_ready(true);
  Client idle(port);
  EXPECT_EQ(idle.get("/v2/health/ready").status, 200);
  const auto client = ask_other();
  const auto call = others.wait_for(1).front();
  auto ended = std::async(std::launch::async, [&] { front->end(); });
  EXPECT_TRUE(idle.at_end());
  EXPECT_FALSE(Client(port).connected());
  EXPECT_EQ(ended.wait_for(0s), std::future_status::timeout);
  front->reply(call, text_reply("in time"));
  EXPECT_EQ(client->answer().body, "in time");
  client->leave();
  ended.get();
  front->end();  // does nothing more
  front->reply(call, text_reply("late"));
}

TEST_F(ServeFront, EndsInItsTimeWhateverClientsDo) {
  options.limits.end = Seconds(0.3);
  start();
  Client half_head(port);
  half_head.send("POST /v2/models/a/inf");
  Client half_body(port);
  half_body.send("POST /v2/models/a/infer HTTP/1.1\r\nhost: localhost\r\ncontent-length: 9\r\n\r\n1234");
  const auto waits = ask_other();
  const auto call = others.wait_for(1).front();
  const auto reads_nothing = ask_other();
  front->reply(others.wait_for(2).back(), text_reply(std::string(std::size_t{32} << 20, 'x')));
  const auto begin = Clock::now();
  front->end();
  EXPECT_LT(Clock::now() - begin, 10s);
  EXPECT_GE(Clock::now() - begin, 300ms);
  EXPECT_EQ(waits->answer().status, 503);
  EXPECT_EQ(others.wait_for_gone(1).front(), call);
  EXPECT_GE(half_body.answer().status, 408);
  EXPECT_GE(half_head.answer().status, 408);
  EXPECT_EQ(front->admission().connections(), 0U);
}

TEST_F(ServeFront, GoesAtOnceWithCallsThatOutliveIt) {
  start();
  const auto client = ask_other();
  const auto call = others.wait_for(1).front();
  front.reset();
  EXPECT_EQ(client->answer().status, 503);
  EXPECT_EQ(others.wait_for_gone(1).front(), call);
  EXPECT_EQ(call->body.text(), "{}");
  others.forget();  // the last to have it
}

TEST_F(ServeFront, FailsWhereNoThreadStarts) {
  const std::size_t files = tests::open_files();
  {
    const tests::NoThreads none;
    EXPECT_TRUE(throws(ErrorKind::fail, {"cannot start a thread"}, [this] { start(); }));
  }
  EXPECT_EQ(tests::open_files(), files);
  EXPECT_FALSE(Client(port).connected());
  EXPECT_TRUE(throws(ErrorKind::fail, {"cannot wait for connections"},
                     [this] { Front(options, {open("/dev/null", O_RDONLY | O_CLOEXEC)}, {}); }));
  EXPECT_EQ(tests::open_files(), files);
}

TEST_F(ServeFront, WaitsForDescriptorsWithoutWork) {
  tests::expect_in_own_process([this] {
    start();
    Client known(port);
    bool good = known.get("/v2/health/live").status == 200;
    Client later;
    rlimit limit{};
    getrlimit(RLIMIT_NOFILE, &limit);
    const rlimit none{3, limit.rlim_max};
    setrlimit(RLIMIT_NOFILE, &none);
    good = good && later.connect_to(port);
    const std::clock_t before = std::clock();
    std::this_thread::sleep_for(300ms);  // in which nothing is to happen
    good = good && std::clock() - before < CLOCKS_PER_SEC / 10;
    good = good && known.get("/v2/health/live").status == 200;
    setrlimit(RLIMIT_NOFILE, &limit);
    return good && later.get("/v2/health/live").status == 200;
  });
}

TEST_F(ServeFront, TriesAgainWhereItCannotWaitForConnections) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "UndefinedBehaviorSanitizer looks at an object by a pipe, for which there is no descriptor";
#endif
  tests::expect_in_own_process([this] {
    const auto [listener, listened] = listening_socket();
    port = listened;
    front = std::make_unique<Front>(options, std::vector<int>{listener}, std::vector<int>{});
    Client known(port);
    bool good = known.get("/v2/health/live").status == 200;
    const int kept = dup(listener);
    Client later;
    rlimit limit{};
    getrlimit(RLIMIT_NOFILE, &limit);
    const rlimit none{3, limit.rlim_max};
    setrlimit(RLIMIT_NOFILE, &none);
    good = good && later.connect_to(port);
    // The system's calls: ThreadSanitizer takes C's for a race with the loop, which uses the descriptor.
    std::this_thread::sleep_for(20ms);   // it has no descriptor for the client ...
    syscall(SYS_close, listener);        // ... and now nothing to wait for
    std::this_thread::sleep_for(200ms);  // in which it tries to
    setrlimit(RLIMIT_NOFILE, &limit);
    syscall(SYS_dup3, kept, listener, 0);
    return good && later.get("/v2/health/live").status == 200;
  });
}

TEST_F(ServeFront, ListensOnUnixSockets) {
  const tests::TemporaryFolder folder;
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string path = folder / "socket";
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  const int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  ASSERT_EQ(bind(listener, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  ASSERT_EQ(listen(listener, 1), 0);
  front = std::make_unique<Front>(options, std::vector<int>{listener}, std::vector<int>{});
  const int client = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  ASSERT_EQ(connect(client, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  const std::string_view question = "GET /v2/health/live HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
  ASSERT_EQ(write(client, question.data(), question.size()), static_cast<ssize_t>(question.size()));
  std::string answer(4096, 0);
  ASSERT_GT(read(client, answer.data(), answer.size()), 0);
  EXPECT_TRUE(answer.starts_with("HTTP/1.1 200 ")) << answer;
  ::close(client);
}

// A server of the model "add", which adds {1, 2, 3}.
class ServeModel : public ServeFront {
 protected:
  void SetUp() override {
    if (const std::string missing = tests::missing_environment(); !missing.empty()) {
      GTEST_SKIP() << missing;
    }
    tests::runtime();  // values need it, also before there is a session
    options.loops = 2;
    start();
  }
  void TearDown() override {
    front.reset();
    if (pool) {
      pool->close(true);
    }
  }

  void serve_add(std::size_t max_batch = 1) {
    Pool::Options of_pool;
    of_pool.batching.max_size = max_batch;
    pool = Pool::make(of_pool);
    add_session(*pool, tests::make_session("add", tests::with_threads(1)), {}, {});
    serve();
  }
  void serve() {
    const auto model = std::make_shared<ServedModel>();
    model->name = "add";
    model->version = "1";
    model->pool = pool;
    model->inputs = {{"x", "FP32", ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, {-1, 3}}};
    model->outputs = {{"sum", "FP32", ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, {-1, 3}}};
    model->joins = of_batch;
    front->models().put(model);
  }
  static std::string question(std::size_t rows, float first, bool binary) {
    std::vector<float> values(rows * 3);
    std::iota(values.begin(), values.end(), first);
    std::string data;
    for (std::size_t i = 0; i < values.size() && !binary; ++i) {
      data += (i == 0 ? "" : ",") + std::to_string(static_cast<int>(values[i]));
    }
    const std::string bytes(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
    return R"({"inputs":[{"name":"x","datatype":"FP32","shape":[)" + std::to_string(rows) + ",3]," +
           (binary ? R"("parameters":{"binary_data_size":)" + std::to_string(bytes.size()) + "}"
                   : "\"data\":[" + data + "]") +
           R"(}],"outputs":[{"name":"sum"}],"parameters":{"binary_data_output":)" + (binary ? "true" : "false") + "}}" +
           (binary ? bytes : "");
  }
  static Answered infer(Client& client, std::size_t rows, float first, bool binary) {
    const std::string body = question(rows, first, binary);
    const std::size_t head = binary ? body.size() - rows * 3 * sizeof(float) : body.size();
    return client.post("/v2/models/add/infer", body,
                       "inference-header-content-length: " + std::to_string(head) + "\r\n");
  }
  // Whether an answer is right.
  static bool right(const Answered& answered, std::size_t rows, float first, bool binary) {
    std::vector<float> values(rows * 3);
    if (answered.status != 200) {
      return false;
    }
    if (binary) {
      if (answered.body.size() < values.size() * sizeof(float)) {
        return false;
      }
      std::memcpy(values.data(), answered.body.data() + answered.body.size() - values.size() * sizeof(float),
                  values.size() * sizeof(float));
    } else {
      const char* next = answered.body.data() + answered.body.find("\"data\":[") + 7;
      for (float& value : values) {
        char* end = nullptr;
        value = std::strtof(next + 1, &end);
        next = end;
      }
    }
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (values[i] != first + static_cast<float>(i) + static_cast<float>(i % 3 + 1)) {
        return false;
      }
    }
    return true;
  }

  std::shared_ptr<Pool> pool;
  bool of_batch = false;
};

TEST_F(ServeModel, AnswersInferForManyClients) {
  of_batch = true;
  serve_add(8);
  std::atomic<int> good{0};
  tests::in_threads(8, [&](int number) {
    Client client(port);
    for (int i = 0; i < 50; ++i) {
      const auto rows = static_cast<std::size_t>(i % 3 + 1);
      const auto first = static_cast<float>(1000 * number + i);
      const bool binary = i % 2 == 0;
      good += right(infer(client, rows, first, binary), rows, first, binary) ? 1 : 0;
    }
  });
  EXPECT_EQ(good.load(), 400);
  EXPECT_EQ(count("200"), 400U);
  EXPECT_EQ(front->models().find("add")->counts->inferences.load(), 8U * 50);
}

TEST_F(ServeModel, ReadsAndWritesLongBodies) {
  serve_add();
  Client client(port);
  constexpr std::size_t rows = 100'000;
  EXPECT_TRUE(right(infer(client, 1, 1, false), 1, 1, false));
  const std::size_t threads = tests::thread_count();
  EXPECT_TRUE(right(infer(client, rows, 1, true), rows, 1, true));
  EXPECT_EQ(tests::thread_count(), threads);
  std::string binary_answer = question(rows, 1, false);
  binary_answer.replace(binary_answer.rfind("false"), 5, "true");
  EXPECT_TRUE(right(client.post("/v2/models/add/infer", binary_answer), rows, 1, true));
  EXPECT_GT(tests::thread_count(), threads) << "JSON is not the loop's work";
  EXPECT_TRUE(right(infer(client, rows, 1, false), rows, 1, false));
  EXPECT_TRUE(becomes([&] { return front->admission().requests() == 0 && front->admission().bytes() == 0; }));
}

TEST_F(ServeModel, AnswersHealthWhileItReadsLongBodies) {
  serve_add();
  std::atomic<bool> done{false};
  std::vector<std::future<void>> busy;
  busy.reserve(4);
  for (int i = 0; i < 4; ++i) {
    busy.push_back(std::async(std::launch::async, [&] {
      Client client(port);
      while (!done) {
        EXPECT_EQ(infer(client, 100'000, 1, false).status, 200);
      }
    }));
  }
  Client client(port);
  for (int i = 0; i < 50; ++i) {
    EXPECT_EQ(client.get("/v2/health/live").status, 200);
  }
  done = true;
}

TEST_F(ServeModel, HandsWhatItDoesNotKnowToOthers) {
  serve_add();
  Client client(port);
  client.send("POST /v2/models/unknown/infer HTTP/1.1\r\nhost: localhost\r\ncontent-length: 2\r\n\r\n{}");
  front->reply(others.wait_for(1).front(), text_reply("no", 404));
  EXPECT_EQ(client.answer().status, 404);
  EXPECT_EQ(client.post("/v2/models/add/infer", "{}").status, 400);
  pool->close(true);
  client.send("POST /v2/models/add/infer HTTP/1.1\r\nhost: localhost\r\ncontent-length: " +
              std::to_string(question(1, 1, false).size()) + "\r\n\r\n" + question(1, 1, false));
  EXPECT_EQ(others.wait_for(2).back()->path, "/v2/models/add/infer");
  front->reply(others.wait_for(2).back(), text_reply("closed", 503));
  EXPECT_EQ(client.answer().status, 503);
}

TEST_F(ServeModel, HandsTracedCallsToOthers) {
  options.traces = true;
  start();
  serve_add();
  Client client(port);
  EXPECT_TRUE(right(infer(client, 1, 1, true), 1, 1, true));
  const std::string body = question(1, 1, false);
  client.send("POST /v2/models/add/infer HTTP/1.1\r\nhost: localhost\r\ntraceparent: 00-1-2-01\r\ncontent-length: " +
              std::to_string(body.size()) + "\r\n\r\n" + body);
  EXPECT_EQ(others.wait_for(1).front()->body.text(), body);
}

TEST_F(ServeModel, HandsLargeAnswersToOthersWhereClientsAcceptCompressedOnes) {
  options.compressed_from = 100;
  start();
  serve_add();
  Client client(port);
  const auto ask = [&](std::size_t rows, const std::string& accepted) {
    const std::string body = question(rows, 1, false);
    client.send("POST /v2/models/add/infer HTTP/1.1\r\nhost: localhost\r\naccept-encoding: " + accepted +
                "\r\ncontent-length: " + std::to_string(body.size()) + "\r\n\r\n" + body);
  };
  constexpr std::size_t rows = 1000;
  for (const char* accepted : {"", "br", "*"}) {
    ask(rows, accepted);
    EXPECT_TRUE(right(client.answer(), rows, 1, false)) << accepted;
  }
  for (const char* accepted : {"gzip", "br, deflate"}) {
    ask(rows, accepted);
    const auto call = others.wait_for(1).front();
    ASSERT_TRUE(call->plain.has_value());
    EXPECT_GE(front->admission().bytes(), 3 * call->plain->reply.size()) << "the answer, and what compressing it takes";
    front->reply(call, text_reply("packed"));
    EXPECT_EQ(client.answer().body, "packed");
    others.forget();
  }
  EXPECT_EQ(count("200"), 5U);
  EXPECT_EQ(front->models().find("add")->counts->inferences.load(), 5U);
}

TEST_F(ServeModel, SendsLargeAnswersAsTheyAreWhereTheMemoryLacks) {
  options.compressed_from = 100;
  options.limits.memory = 60'000;
  start();
  serve_add();
  Client client(port);
  constexpr std::size_t rows = 2000;  // 24 kB
  const std::string body = question(rows, 1, true);
  const std::size_t head = body.size() - rows * 3 * sizeof(float);
  const std::string length = "inference-header-content-length: " + std::to_string(head) + "\r\n";
  EXPECT_TRUE(right(client.post("/v2/models/add/infer", body, "accept-encoding: gzip\r\n" + length), rows, 1, true));
}

TEST_F(ServeModel, ComputesNothingForWhoHasGone) {
  pool = Pool::make({});
  pool->expect(Device::cpu(), 1);  // requests wait for a session
  serve();
  std::vector<std::unique_ptr<Client>> clients;
  clients.reserve(10);
  for (int i = 0; i < 10; ++i) {
    clients.push_back(std::make_unique<Client>(port));
    const std::string body = question(1, 1, false);
    clients.back()->send("POST /v2/models/add/infer HTTP/1.1\r\nhost: localhost\r\ncontent-length: " +
                         std::to_string(body.size()) + "\r\n\r\n" + body);
  }
  EXPECT_TRUE(becomes([&] { return pool->stats().waiting == 10; }));
  EXPECT_EQ(front->admission().requests(), 10U);
  for (int i = 0; i < 9; ++i) {
    i % 2 == 0 ? clients.front()->break_off() : clients.front()->leave();
    clients.erase(clients.begin());
  }
  EXPECT_TRUE(becomes([&] { return pool->stats().waiting == 1 && front->admission().requests() == 1; }));
  add_session(*pool, tests::make_session("add"), {}, {});
  EXPECT_TRUE(right(clients.front()->answer(), 1, 1, false));
  EXPECT_EQ(front->models().find("add")->counts->inferences.load(), 1U);
}

TEST_F(ServeModel, EndsBesideRequestsThatWait) {
  options.limits.end = Seconds(0.2);
  start();
  pool = Pool::make({});
  pool->expect(Device::cpu(), 1);
  serve();
  Client client(port);
  const std::string body = question(1, 1, false);
  client.send("POST /v2/models/add/infer HTTP/1.1\r\nhost: localhost\r\ncontent-length: " +
              std::to_string(body.size()) + "\r\n\r\n" + body);
  EXPECT_TRUE(becomes([&] { return pool->stats().waiting == 1; }));
  front->end();
  EXPECT_EQ(client.answer().status, 503);
  EXPECT_EQ(pool->stats().waiting, 0U);
}

TEST_F(ServeModel, GoesBeforeItsRequestsAreAnswered) {
  pool = Pool::make({});
  pool->expect(Device::cpu(), 1);
  serve();
  Client client(port);
  const std::string body = question(1, 1, false);
  client.send("POST /v2/models/add/infer HTTP/1.1\r\nhost: localhost\r\ncontent-length: " +
              std::to_string(body.size()) + "\r\n\r\n" + body);
  EXPECT_TRUE(becomes([&] { return pool->stats().waiting == 1; }));
  front.reset();
  EXPECT_EQ(client.answer().status, 503);
}

// Calls that another server in the process received.
class ServeAsked : public ServeModel {
 protected:
  void SetUp() override {
    ServeModel::SetUp();
    if (!IsSkipped()) {
      open();
    }
  }
  void open() { front = std::make_unique<Front>(options, std::vector<int>{}, std::vector<int>{}); }

  std::shared_ptr<Call> call(const std::string& body, const std::string& path = "/v2/models/add/infer") {
    auto call = front->call(Protocol::http);
    call->method = "POST";
    call->path = path;
    EXPECT_EQ(front->begin(*call), nullptr);
    EXPECT_EQ(front->receive(*call, body.substr(0, 10)), nullptr);
    EXPECT_EQ(front->receive(*call, body.substr(std::min<std::size_t>(10, body.size()))), nullptr);
    return call;
  }
  // Whether the last of so many answers is that of question(1, 1, false).
  bool answered(std::size_t count) {
    const Reply reply = others.wait_for_answers(count).back();
    std::string body;
    for (const Piece& piece : reply.body) {
      body += piece.bytes;
    }
    return right({reply.status, "", body}, 1, 1, false);
  }
};

TEST_F(ServeAsked, IsAnsweredAsThoseOfConnections) {
  serve_add();
  auto asked = call(question(1, 1, false));
  front->ask(asked);
  EXPECT_TRUE(answered(1));
  EXPECT_TRUE(asked->timing.has_value());
  EXPECT_EQ(front->admission().requests(), 0U);
  EXPECT_GT(front->admission().bytes(), 0U);
  asked.reset();
  EXPECT_TRUE(becomes([&] { return front->admission().bytes() == 0; }));
  EXPECT_TRUE(front->answers().empty()) << "whoever asked counts them";
  EXPECT_EQ(front->models().find("add")->counts->inferences.load(), 1U);
}

TEST_F(ServeAsked, MayBeAskedAgain) {
  const auto asked = call(question(1, 1, false));
  front->ask(asked);
  EXPECT_EQ(others.wait_for(1).front(), asked);
  EXPECT_EQ(front->admission().requests(), 1U) << "it is under way, whoever answers it";
  serve_add();
  front->ask(asked);
  EXPECT_TRUE(answered(1));
  EXPECT_EQ(front->admission().requests(), 0U);
}

TEST_F(ServeAsked, HasLimits) {
  options.token = "secret";
  options.limits.body = 100'000;
  options.limits.memory = 150'000;
  open();
  const auto first = front->call(Protocol::http);
  EXPECT_EQ(front->begin(*first)->status, 401);
  first->headers = {{"authorization", "Bearer secret"}, {"content-length", "100001"}};
  EXPECT_EQ(front->begin(*first)->status, 413);
  first->headers[1].second = "100000";
  EXPECT_EQ(front->begin(*first), nullptr);
  EXPECT_EQ(front->receive(*first, std::string(100'000, ' ')), nullptr);
  EXPECT_EQ(front->receive(*first, "x")->status, 413);
  const auto second = front->call(Protocol::grpc);
  EXPECT_EQ(front->receive(*second, std::string(100'000, ' '))->status, 503) << "there is no memory for both";
}

TEST_F(ServeAsked, HasItsLargeAnswerCompressedByWhoeverAsked) {
  options.compressed_from = 1;
  open();
  serve_add();
  auto asked = call(question(1, 1, false));
  asked->headers.emplace_back("accept-encoding", "gzip");
  front->ask(asked);
  EXPECT_EQ(others.wait_for(1).front(), asked);
  ASSERT_TRUE(asked->plain.has_value());
  EXPECT_EQ(asked->plain->coding, "gzip");
  EXPECT_TRUE(asked->timing.has_value());
  others.forget();
  asked.reset();
  EXPECT_TRUE(becomes([&] { return front->admission().requests() == 0 && front->admission().bytes() == 0; }));
}

TEST_F(ServeAsked, IsNotComputedOnceItIsForgotten) {
  pool = Pool::make({});
  pool->expect(Device::cpu(), 1);  // requests wait for a session
  serve();
  const auto asked = call(question(1, 1, false));
  front->ask(asked);
  EXPECT_TRUE(becomes([&] { return pool->stats().waiting == 1; }));
  front->forget(asked);
  EXPECT_TRUE(becomes([&] { return pool->stats().waiting == 0; }));
}

TEST_F(ServeAsked, TakesThePlaceOfAnother) {
  options.limits.concurrent = 1;
  open();
  serve_add();
  const auto packed = call("a body", "/v2/models/unknown/infer");
  packed->headers = {{"content-encoding", "gzip"}, {"content-length", "6"}, {"accept", "x"}};
  packed->peer = "a 1";
  front->ask(packed);
  others.wait_for(1);
  const std::string question = this->question(1, 1, false);
  const auto plain = front->instead_of(*packed, question.size());
  EXPECT_EQ(plain->headers, (Headers{{"accept", "x"}, {"content-length", std::to_string(question.size())}}));
  EXPECT_EQ(front->begin(*plain), nullptr) << "it has the only place";
  EXPECT_EQ(plain->since, packed->since) << "of its deadline";
  EXPECT_EQ(plain->peer + plain->path + plain->method, "a 1/v2/models/unknown/inferPOST");
  EXPECT_EQ(plain->body.size(), 0U);
  plain->path = "/v2/models/add/infer";
  EXPECT_EQ(front->receive(*plain, question), nullptr);
  front->ask(plain);
  EXPECT_TRUE(answered(1));
  EXPECT_EQ(front->instead_of(*packed, std::nullopt)->body.text(), "a body");
}

// A client of gRPC that reads messages, not headers.
class GrpcClient {
 public:
  explicit GrpcClient(std::uint16_t port) : client_(port) {
    client_.send("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
    send_frame(settings, 0, 0, "");
  }
  // A message of a new stream. Returns the stream.
  std::uint32_t ask(const std::string& path, const std::string& message, const Headers& more = {}) {
    return ask_with(path, std::string(1, '\0') + number(message.size(), 4) + message, more);
  }
  std::uint32_t ask_compressed(const std::string& path, const std::string& message, const Headers& more) {
    return ask_with(path, std::string(1, '\1') + number(message.size(), 4) + message, more);
  }
  // Headers of a new stream alone.
  std::uint32_t begin(const std::string& path) { return begin_with(path, {}); }
  // Empty messages of a new stream.
  std::uint32_t ask_often(const std::string& path, std::size_t count) {
    return ask_with(path, std::string(5 * count, '\0'), {});
  }
  // The message of the next answer of any stream; empty: it has none.
  std::string answer() {
    std::string message;
    for (;;) {
      const std::string head = client_.bytes(9);
      if (head.size() < 9) {
        return "closed";
      }
      std::size_t length = 0;
      for (int i = 0; i < 3; ++i) {
        length = length << 8U | static_cast<unsigned char>(head[static_cast<std::size_t>(i)]);
      }
      const std::string payload = client_.bytes(length);
      if (head[3] == data) {
        message += payload;
      }
      if ((head[3] == data || head[3] == headers_frame) && (head[4] & end_stream) != 0) {
        return message.substr(std::min<std::size_t>(message.size(), 5));
      }
    }
  }
  void reset(std::uint32_t stream) { send_frame(rst_stream, 0, stream, number(8, 4)); }

 private:
  enum : char { data = 0, headers_frame = 1, rst_stream = 3, settings = 4, end_stream = 1, end_headers = 4 };

  static std::string number(std::size_t value, int bytes) {
    std::string text;
    for (int i = bytes - 1; i >= 0; --i) {
      text += static_cast<char>(value >> static_cast<unsigned>(8 * i) & 0xFFU);
    }
    return text;
  }
  std::uint32_t ask_with(const std::string& path, const std::string& messages, const Headers& more) {
    const std::uint32_t stream = begin_with(path, more);
    send_frame(data, end_stream, stream, messages);
    return stream;
  }
  std::uint32_t begin_with(const std::string& path, const Headers& more) {
    std::string head;
    Headers headers{{":method", "POST"},         {":scheme", "http"}, {":path", path},
                    {":authority", "localhost"}, {"te", "trailers"},  {"content-type", "application/grpc"}};
    headers.insert(headers.end(), more.begin(), more.end());
    for (const auto& [name, value] : headers) {  // literal, without Huffman's code
      (((head += '\0') += static_cast<char>(name.size())) += name) += static_cast<char>(value.size());
      head += value;
    }
    const std::uint32_t stream = std::exchange(next_, next_ + 2);
    send_frame(headers_frame, end_headers, stream, head);
    return stream;
  }
  void send_frame(char type, char flags, std::uint32_t stream, const std::string& payload) {
    client_.send(number(payload.size(), 3) + type + flags + number(stream, 4) + payload);
  }

  Client client_;
  std::uint32_t next_ = 1;
};

class ServeGrpc : public ServeFront {
 protected:
  void start_grpc() {
    const auto [listener, listened] = listening_socket();
    port = listened;
    try {
      front = std::make_unique<Front>(options, std::vector<int>{}, std::vector<int>{listener});
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::library) {
        throw;
      }
      GTEST_SKIP() << error.what();
    }
  }
  std::uint64_t grpc_count(const std::string& code) {
    const auto answers = front->answers();
    const auto found = answers.find({"grpc", code});
    return found == answers.end() ? 0 : found->second;
  }

  const std::string service = "/inference.GRPCInferenceService/";
};

TEST_F(ServeGrpc, AnswersHealthItselfAndTheRestByOthers) {
  options.token = "secret";
  ASSERT_NO_FATAL_FAILURE(start_grpc());
  if (IsSkipped()) {
    return;
  }
  GrpcClient client(port);
  client.ask(service + "ServerLive", "");
  EXPECT_EQ(client.answer(), "\x08\x01");
  client.ask(service + "ServerReady", "");
  EXPECT_EQ(client.answer(), "");
  front->set_ready(true);
  client.ask("/grpc.health.v1.Health/Check", "");
  EXPECT_EQ(client.answer(), "\x08\x01");
  client.ask(service + "ModelInfer", "\x0a\x01m");
  EXPECT_EQ(client.answer(), "");
  EXPECT_EQ(grpc_count("UNAUTHENTICATED"), 1U);
  client.ask(service + "ModelInfer", "\x0a\x01m", {{"authorization", "Bearer secret"}});
  const auto call = others.wait_for(1).front();
  EXPECT_EQ(call->body.text(), "\x0a\x01m");
  front->reply(call, text_reply("\x0a\x01n"));
  EXPECT_EQ(client.answer(), "\x0a\x01n");
  EXPECT_EQ(grpc_count("OK"), 4U);
}

TEST_F(ServeGrpc, HandsCompressedMessagesToOthers) {
  ASSERT_NO_FATAL_FAILURE(start_grpc());
  if (IsSkipped()) {
    return;
  }
  GrpcClient client(port);
  const std::string check = "/grpc.health.v1.Health/Check";
  for (const std::string& path : {service + "ModelInfer", service + "ServerReady", check}) {
    client.ask_compressed(path, "packed", {{"grpc-encoding", "gzip"}});
    const auto call = others.wait_for(1).front();
    EXPECT_TRUE(call->compressed);
    EXPECT_EQ(call->path, path);
    EXPECT_EQ(call->body.text(), "packed");
    front->reply(call, text_reply("plain"));
    EXPECT_EQ(client.answer(), "plain");
    others.forget();
  }
}

TEST_F(ServeGrpc, RefusesUnknownMethodsAtTheirHeaders) {
  ASSERT_NO_FATAL_FAILURE(start_grpc());
  if (IsSkipped()) {
    return;
  }
  GrpcClient client(port);
  for (const char* path : {"/grpc.reflection.v1.ServerReflection/ServerReflectionInfo", "/a/b"}) {
    client.begin(path);  // and does not end
    EXPECT_EQ(client.answer(), "");
  }
  EXPECT_EQ(grpc_count("UNIMPLEMENTED"), 2U);
}

// Answers all calls at once, with nothing, in one loop.
class ServeLoop : public testing::Test, public Loop::Owner, public Router {
 protected:
  void SetUp() override {
    if (const std::string missing = why_no_http2(); !missing.empty()) {
      GTEST_SKIP() << missing;
    }
    const auto [listener, listened] = listening_socket();
    port = listened;
    fcntl(listener, F_SETFL, O_NONBLOCK);
    loop = std::make_unique<Loop>(*this, admission, Loop::Options{{std::make_shared<const Socket>(listener)}, 0, 1});
    loop->start({});
  }
  void TearDown() override { loop.reset(); }

  std::unique_ptr<Connection> connect(std::string peer, std::uint64_t number, Clock::time_point now) override {
    return make_http2({*this, admission, buffers}, std::move(peer), number, now);
  }
  void finished(Requests /*requests*/) override {}
  void cut_off() override {}
  bool tidy() override { return true; }
  std::unique_ptr<Reply> begin(Call& /*call*/) override { return nullptr; }
  void finish(std::shared_ptr<Call> call) override {
    if (++answered == 1) {
      loop->mailbox()->put([this] { answered_before_mail = answered; });
    }
    loop->reply(std::move(call), text_reply(""));
  }
  void gone(const std::shared_ptr<Call>& /*call*/) override {}

  Admission admission{Limits()};
  BufferPool buffers{std::size_t{1} << 20};
  std::uint16_t port = 0;
  std::unique_ptr<Loop> loop;
  std::size_t answered = 0;  // by the loop's thread
  std::size_t answered_before_mail = 0;
};

TEST_F(ServeLoop, LooksAtAllElseWhileMuchIsAnsweredAtOnce) {
  constexpr std::size_t count = 3000;
  GrpcClient client(port);
  client.ask_often("/inference.GRPCInferenceService/ModelStreamInfer", count);
  EXPECT_EQ(client.answer(), std::string(5 * count - 5, '\0'));
  loop->end(Clock::time_point::min());
  loop->join();
  EXPECT_EQ(answered, count);
  EXPECT_GT(answered_before_mail, 0U);
  EXPECT_LT(answered_before_mail, 20U);
}

TEST_F(ServeGrpc, ForgetsCallsThatAreReset) {
  options.limits.concurrent = 2;
  ASSERT_NO_FATAL_FAILURE(start_grpc());
  if (IsSkipped()) {
    return;
  }
  GrpcClient client(port);
  const std::uint32_t stream = client.ask(service + "ServerMetadata", "");
  const auto call = others.wait_for(1).front();
  client.ask(service + "ServerMetadata", "");
  const auto other = others.wait_for(2).back();
  client.ask(service + "ServerMetadata", "");
  EXPECT_EQ(client.answer(), "");
  EXPECT_EQ(grpc_count("UNAVAILABLE"), 1U);
  client.ask(service + "ServerLive", "");
  EXPECT_EQ(client.answer(), "\x08\x01");
  client.reset(stream);
  EXPECT_EQ(others.wait_for_gone(1).front(), call);
  front->reply(call, text_reply("late"));
  auto ended = std::async(std::launch::async, [this] { front->end(); });
  front->reply(other, text_reply("in time"));
  EXPECT_EQ(client.answer(), "in time");
  EXPECT_EQ(client.answer(), "closed");
  ended.get();
}

class ServeRoute : public testing::Test {
 protected:
  std::unique_ptr<Call> call(Protocol protocol, const std::string& path, const std::string& method = "POST",
                             const std::string& body = "") {
    auto made = std::make_unique<Call>(protocol, buffers, admission);
    made->path = path;
    made->method = method;
    made->body.append(body);
    return made;
  }
  Route http(const std::string& path, const std::string& method = "POST") {
    return route_of(*call(Protocol::http, path, method));
  }
  Route grpc(const std::string& path) { return route_of(*call(Protocol::grpc, path)); }
  // What a service's health is: the message's text, or gRPC's code behind a minus.
  std::string check(const std::string& request, bool ready) {
    const Reply reply =
        health(*call(Protocol::grpc, "/grpc.health.v1.Health/Check", "POST", request), Route::check, ready);
    return reply.status == 200 ? std::string(reply.body.front().bytes)
                               : std::to_string(-static_cast<int>(to_grpc(reply.status)));
  }

  Admission admission{Limits{}};
  BufferPool buffers{0};
};

TEST_F(ServeRoute, KnowsPaths) {
  EXPECT_EQ(http("/v2/health/live", "GET"), Route::live);
  EXPECT_EQ(http("/v2/health/ready/", "GET"), Route::ready);
  EXPECT_EQ(http("/health", "GET"), Route::ready);
  EXPECT_EQ(http("/v2/health/other", "GET"), Route::other);
  EXPECT_EQ(http("/v2/models/a/infer"), Route::infer);
  EXPECT_EQ(http("/v2/models/a/versions/1/infer"), Route::infer);
  EXPECT_EQ(http("/v2/models/a/infer", "GET"), Route::other);
  EXPECT_EQ(http("/v2/models/a/ready", "GET"), Route::model_ready);
  EXPECT_EQ(http("/v2/models/a/versions/1/ready", "GET"), Route::model_ready);
  for (const char* path : {"/", "", "/v2", "/v2/models/ready", "/v2/models//ready", "/v2/models/a/versions/ready",
                           "/v2/models/a/versions//ready", "/v2/models/a/config/ready", "/v2/models/a/ready%2F",
                           "/v2/models/a/infer/x", "/v1/models/a/infer", "/v2/models/a/versions/1/2/ready"}) {
    EXPECT_EQ(http(path), Route::other) << path;
    EXPECT_TRUE(needs_token(http(path))) << path;
  }
  const std::string service = "/inference.GRPCInferenceService/";
  EXPECT_EQ(grpc(service + "ServerLive"), Route::live);
  EXPECT_EQ(grpc(service + "ServerReady"), Route::ready);
  EXPECT_EQ(grpc(service + "ModelReady"), Route::model_ready);
  EXPECT_EQ(grpc(service + "ModelInfer"), Route::infer);
  EXPECT_EQ(grpc(service + "ModelStreamInfer"), Route::infer);
  EXPECT_EQ(grpc("/grpc.health.v1.Health/Check"), Route::check);
  for (const char* method : {"ModelConfig", "ModelMetadata", "ModelStatistics", "RepositoryIndex",
                             "RepositoryModelLoad", "RepositoryModelUnload", "ServerMetadata"}) {
    EXPECT_EQ(grpc(service + method), Route::other) << method;
  }
  for (const char* path : {"", "/", "ServerLive", "/ServerLive", "/inference.GRPCInferenceService/Model",
                           "/inference.GRPCInferenceService/ServerLive/", "/inference.GRPCInferenceService",
                           "/grpc.health.v1.Health/Watch", "/grpc.health.v1.Health/ServerLive",
                           "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"}) {
    EXPECT_EQ(grpc(path), Route::unknown) << path;
    EXPECT_TRUE(needs_token(grpc(path))) << path;
  }
  EXPECT_TRUE(has_request_stream(service + "ModelStreamInfer"));
  EXPECT_FALSE(has_request_stream(service + "ModelInfer"));
}

TEST(ServeCoding, IsTheFirstThatTheClientAccepts) {
  const auto accepted = [](const char* header, bool binary) {
    return accepted_coding({{"accept-encoding", header}}, binary);
  };
  for (const char* header : {"gzip", "GZip ;q=0.5", "gzip;q=1.000"}) {
    EXPECT_EQ(accepted(header, false), "gzip") << header;
    EXPECT_EQ(accepted(header, true), "gzip") << header;
  }
  for (const char* header : {"br, deflate;q=0.1,gzip", "deflate,", "gzip; q=0.0, deflate"}) {
    EXPECT_EQ(accepted(header, false), "deflate") << header;
    EXPECT_EQ(accepted(header, true), "") << header;
  }
  for (const char* header : {"", ",", ";", "*", "br", "xgzip", "gzip;q=0", "gzip;q=0.000", "identity"}) {
    EXPECT_EQ(accepted(header, false), "") << header;
  }
  EXPECT_EQ(accepted_coding({}, false), "");
}

TEST_F(ServeRoute, ChecksHealth) {
  const std::string serving("\x08\x01");
  const std::string not_serving("\x08\x02");
  const std::string service = "inference.GRPCInferenceService";
  EXPECT_EQ(check("", true), serving);
  EXPECT_EQ(check("", false), not_serving);
  EXPECT_EQ(check("\x0a" + std::string(1, static_cast<char>(service.size())) + service, true), serving);
  EXPECT_EQ(check(std::string("\x10\x05\x0a\x00", 4), true), serving);
  EXPECT_EQ(check("\x0a\x01x", true), "-5");
  for (const char* wrong : {"\x0a\x05x", "\x0a", "\xff", "\x0b\x01", "\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01x"}) {
    EXPECT_EQ(check(wrong, true), "-3");
  }
}

TEST_F(ServeRoute, CountsWhatIsToBeParsed) {
  const auto json = call(Protocol::http, "/v2/models/a/infer", "POST", std::string(1000, ' '));
  EXPECT_EQ(bytes_to_parse(*json), 1000U);
  json->headers.emplace_back("inference-header-content-length", "100");
  EXPECT_EQ(bytes_to_parse(*json), 100U);
  json->headers.back().second = "4000";
  EXPECT_EQ(bytes_to_parse(*json), 1000U);
  const std::string raw = std::string("\x3a\xf4\x03", 3) + std::string(500, 'x');
  EXPECT_EQ(bytes_to_parse(*call(Protocol::grpc, "", "POST", "\x0a\x01x" + raw + raw)), 3U + 2 * 3);
  EXPECT_EQ(bytes_to_parse(*call(Protocol::grpc, "", "POST", "\x0a\x7fx")), 3U);
}

TEST_F(ServeRoute, ComparesSecrets) {
  EXPECT_TRUE(same_secret("abc", "abc"));
  EXPECT_TRUE(same_secret("", ""));
  for (const char* given : {"", "ab", "abd", "abca", "abcabc", "Abc"}) {
    EXPECT_FALSE(same_secret(given, "abc")) << given;
  }
  EXPECT_FALSE(same_secret("abc", ""));
}

}  // namespace
}  // namespace ortmulti::serve
