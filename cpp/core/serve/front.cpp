#include "core/serve/front.hpp"

#include <fcntl.h>

#include <algorithm>
#include <chrono>
#include <deque>
#include <iterator>
#include <optional>

#include "core/base/mutex.hpp"
#include "core/serve/division.hpp"
#include "core/serve/front_calls.hpp"
#include "core/serve/loop.hpp"

namespace ortmulti::serve {
namespace {

using Listeners = std::vector<std::shared_ptr<const Socket>>;

// Makes room for so many further bytes of the body. Returns a refusal if the body would be too large, else null.
std::unique_ptr<Reply> make_room(Call& call, std::size_t bytes, const Limits& limits) {
  if (bytes > limits.body - call.body.size()) {
    return std::make_unique<Reply>(refusal(call.protocol, 413,
                                           "the request's body is larger than " + std::to_string(limits.body) +
                                               " bytes" + (call.decompressed ? ", decompressed" : ""),
                                           call.path));
  }
  call.body.room(bytes);
  return nullptr;
}

// They are owned before anything else may throw.
Listeners listening(const std::vector<int>& descriptors) {
  Listeners listeners;
  std::vector<Socket> owned;
  owned.reserve(descriptors.size());
  for (const int descriptor : descriptors) {
    owned.emplace_back(descriptor);
  }
  for (Socket& socket : owned) {
    fcntl(socket.get(), F_SETFL, fcntl(socket.get(), F_GETFL) | O_NONBLOCK);
    listeners.push_back(std::make_shared<const Socket>(std::move(socket)));
  }
  return listeners;
}

}  // namespace

struct Front::State : NonCopyable {
  struct Side {
    Side(const std::shared_ptr<FrontShared>& shared, Protocol protocol, Loop::Options options)
        : calls(shared, protocol), loop(calls, shared->admission, std::move(options)) {
      calls.attach(loop);
    }
    FrontCalls calls;
    Loop loop;
  };

  State(Options options, const Listeners& http, const Listeners& grpc)
      : shared(std::make_shared<FrontShared>(std::move(options))) {
    shared->options.limits = shared->admission.limits();  // whose times are bounded
    const std::size_t loops = std::max<std::size_t>(shared->options.loops, 1);
    const std::size_t all = (http.empty() ? 0 : loops) + (grpc.empty() ? 0 : loops);
    add(Protocol::http, http, loops, all);
    add(Protocol::grpc, grpc, loops, all);
    if (sides.empty()) {  // one for ask() alone
      sides.emplace_back(shared, Protocol::http, Loop::Options{{}, 0, 1});
    }
    for (Side& side : sides) {  // whether there can be connections at all: gRPC needs a library
      side.calls.connect("", 0, Loop::Clock::now());
    }
  }
  ~State() {
    end(Loop::Clock::time_point::min());
    // Calls may be kept longer, by threads in which what is caught here must not be freed.
    shared->options.other = nullptr;
    shared->options.gone = nullptr;
    shared->options.answered = nullptr;
  }

  void add(Protocol protocol, const Listeners& listeners, std::size_t loops, std::size_t all) {
    for (std::size_t i = 0; i < loops && !listeners.empty(); ++i) {
      sides.emplace_back(shared, protocol, Loop::Options{listeners, sides.size(), all});
    }
  }

  void start() {
    for (const Protocol protocol : {Protocol::http, Protocol::grpc}) {
      std::vector<Loop*> beside;
      for (Side& side : sides) {
        if (side.calls.protocol() == protocol) {
          beside.push_back(&side.loop);
        }
      }
      for (Loop* loop : beside) {
        loop->start(beside);
      }
    }
  }

  void end(Loop::Clock::time_point until) {
    shared->ready = false;
    for (Side& side : sides) {
      side.loop.end(until);
    }
    const MutexLock lock(joining);
    for (Side& side : sides) {
      side.loop.join();
    }
    shared->workers.close(true);
  }

  const std::shared_ptr<FrontShared> shared;
  std::deque<Side> sides;
  Mutex joining;
};

Front::Front(Options options, const std::vector<int>& http, const std::vector<int>& grpc) {
  if (!http.empty() || !grpc.empty()) {  // else the process is not this server's
    keep_freed_memory();
    allow_division_overflow();
  }
  const Listeners of_http = listening(http);
  const Listeners of_grpc = listening(grpc);
  state_ = std::make_shared<State>(std::move(options), of_http, of_grpc);
  state_->start();
}

Front::~Front() { state_->end(Loop::Clock::time_point::min()); }

ServedModels& Front::models() noexcept { return state_->shared->models; }

void Front::set_ready(bool ready) noexcept { state_->shared->ready = ready; }

void Front::reply(const std::shared_ptr<Call>& call, Reply reply) {
  State::Side& side = state_->sides[call->connection % state_->sides.size()];
  side.loop.mailbox()->put(
      [calls = &side.calls, call, reply = std::move(reply)]() mutable { calls->reply(call, std::move(reply)); });
}

bool Front::work(std::function<void()> task) { return state_->shared->work(std::move(task)); }

std::shared_ptr<Call> Front::call(Protocol protocol) {
  const std::shared_ptr<FrontShared>& shared = state_->shared;
  auto call = std::make_shared<Call>(protocol, shared->buffers, shared->admission);
  call->asked = true;
  return kept(shared, std::move(call));
}

std::shared_ptr<Call> Front::instead_of(Call& other, std::optional<std::size_t> size) {
  auto call = this->call(other.protocol);
  call->method = other.method;
  call->path = other.path;
  call->query = other.query;
  call->streamed = other.streamed;
  call->peer = other.peer;
  call->since = other.since;
  std::ranges::copy_if(other.headers, std::back_inserter(call->headers), [](const auto& header) {
    return header.first != "content-encoding" && header.first != "content-length";
  });
  call->place = std::move(other.place);
  call->decompressed = size.has_value();
  if (size) {
    call->headers.emplace_back("content-length", std::to_string(*size));
  } else {
    call->body = std::move(other.body);  // whose bytes the other call counts
  }
  return call;
}

std::unique_ptr<Reply> Front::begin(Call& call) {
  if (auto reply = state_->sides.front().calls.begin(call)) {
    return reply;
  }
  if (const auto json = number_in(call.headers, "inference-header-content-length")) {
    call.body.align(*json);  // so that the tensors behind it are used where they are
  }
  const auto length = number_in(call.headers, "content-length");
  return length ? make_room(call, *length, state_->shared->options.limits) : nullptr;
}

std::unique_ptr<Reply> Front::receive(Call& call, std::string_view bytes) {
  if (auto reply = make_room(call, bytes.size(), state_->shared->options.limits)) {
    return reply;
  }
  call.body.append(bytes);
  if (!call.bytes.grow_to(call.body.resident())) {
    return std::make_unique<Reply>(
        refusal(call.protocol, 503, "the server has no memory left for requests, try again later", call.path));
  }
  return nullptr;
}

void Front::ask(std::shared_ptr<Call> call) {
  State::Side& side = state_->sides.front();
  side.loop.mailbox()->put([calls = &side.calls, call = std::move(call)] { calls->finish(call); });
}

void Front::forget(std::shared_ptr<Call> call) {
  State::Side& side = state_->sides.front();
  side.loop.mailbox()->put([calls = &side.calls, call = std::move(call)] { calls->gone(call); });
}

void Front::renew_certificate() { state_->shared->load_certificate(); }

void Front::end() {
  const auto state = state_;
  state->end(Loop::Clock::now() + duration_of(state->shared->options.limits.end));
}

std::map<std::pair<std::string, std::string>, std::uint64_t> Front::answers() const {
  return state_->shared->answers.all();
}

std::vector<Front::Access> Front::take_access_log() {
  auto taken = state_->shared->access_log.take().items;
  return {std::move_iterator(taken.begin()), std::move_iterator(taken.end())};
}

const Admission& Front::admission() const noexcept { return state_->shared->admission; }

}  // namespace ortmulti::serve
