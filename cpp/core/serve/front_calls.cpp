#include "core/serve/front_calls.hpp"

#include <algorithm>
#include <exception>
#include <string_view>

#include "core/base/error.hpp"
#include "core/pool/pool.hpp"
#include "core/serve/route.hpp"

namespace ortmulti::serve {
namespace {

// More than this is read, or written, by a worker: a megabyte of JSON takes some milliseconds.
constexpr std::size_t most_in_loop = std::size_t{64} << 10;
constexpr std::size_t most_numbers = 8192;
constexpr std::size_t most_workers = 2;
constexpr std::size_t most_logged = 8192;
// Is sent without a budget, as health is.
constexpr std::size_t small_answer = 4096;
// Of the places for requests, what is left for infer whatever holds Python up.
constexpr std::size_t share_of_infer = 4;
constexpr std::chrono::seconds quiet_for{3};
// Of the memory for clients, what is kept for the next bodies.
constexpr std::size_t share_kept = 16;

constexpr std::array<const char*, 17> grpc_names{
    "OK",        "CANCELLED",      "UNKNOWN",           "INVALID_ARGUMENT",   "DEADLINE_EXCEEDED",
    "NOT_FOUND", "ALREADY_EXISTS", "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION",
    "ABORTED",   "OUT_OF_RANGE",   "UNIMPLEMENTED",     "INTERNAL",           "UNAVAILABLE",
    "DATA_LOSS", "UNAUTHENTICATED"};

// A call, and what it needs as long as anybody has it.
struct Kept {
  std::shared_ptr<const FrontShared> shared;
  std::shared_ptr<Call> call;  // freed first
};

bool traced(const Headers& headers) {
  return std::ranges::any_of(headers, [](const auto& header) {
    return header.first == "traceparent" || header.first == "tracestate" || header.first == "baggage";
  });
}

std::string busy(const FrontShared& shared) {
  return std::to_string(shared.admission.requests()) + " requests are under way, which is the limit";
}

// For an exception that is under way: of lack of memory, or of `other`.
Reply failure_of(const Call& call) { return refused(call, 500, text_of(std::current_exception())); }

// Whether an answer takes long to write: it has many numbers as JSON.
bool long_answer(const InferRequest& request) {
  // Of a request that was given up, the run may still write its outputs.
  if (request.call->protocol != Protocol::http || request.outcome != Request::Outcome::done) {
    return false;
  }
  std::size_t numbers = 0;
  for (std::size_t i = 0; i < std::min(request.outputs.size(), request.wanted.size()); ++i) {
    const Ort::Value& output = request.outputs[i];
    if (!request.wanted[i].binary && output && output.IsTensor()) {
      numbers += output.GetTensorTypeAndShapeInfo().GetElementCount();
    }
  }
  return numbers > most_numbers;
}

}  // namespace

void AnswerCounts::add(Protocol protocol, int http_status) noexcept {
  const auto at = protocol == Protocol::http ? static_cast<std::size_t>(http_status)
                                             : static_cast<std::size_t>(to_grpc(http_status));
  auto& count = protocol == Protocol::http ? http_[std::min(at, http_.size() - 1)] : grpc_[at];
  count.fetch_add(1, std::memory_order_relaxed);
}

std::map<std::pair<std::string, std::string>, std::uint64_t> AnswerCounts::all() const {
  std::map<std::pair<std::string, std::string>, std::uint64_t> all;
  for (std::size_t i = 0; i < http_.size(); ++i) {
    if (const std::uint64_t count = http_[i].load(std::memory_order_relaxed); count > 0) {
      all[{"http", std::to_string(i)}] = count;
    }
  }
  for (std::size_t i = 0; i < grpc_.size(); ++i) {
    if (const std::uint64_t count = grpc_[i].load(std::memory_order_relaxed); count > 0) {
      all[{"grpc", grpc_names[i]}] = count;
    }
  }
  return all;
}

FrontShared::FrontShared(Front::Options given)
    : options(std::move(given)),
      authorization(options.token.empty() ? "" : "Bearer " + options.token),
      admission(options.limits),
      buffers(options.limits.memory / share_kept),
      most_others(options.limits.concurrent - options.limits.concurrent / share_of_infer),
      access_log(most_logged) {}

std::shared_ptr<Call> kept(std::shared_ptr<const FrontShared> shared, std::shared_ptr<Call> call) {
  const auto kept = std::make_shared<const Kept>(Kept{std::move(shared), std::move(call)});
  return {kept, kept->call.get()};
}

FrontCalls::FrontCalls(std::shared_ptr<FrontShared> shared, Protocol protocol)
    : shared_(std::move(shared)), protocol_(protocol) {
  const Front::Options& options = shared_->options;
  if (!options.certificate.empty()) {
    tls_ = std::make_shared<const TlsContext>(options.certificate, options.key,
                                              protocol == Protocol::http ? "http/1.1" : "h2");
  }
}

void FrontCalls::attach(Loop& loop) {
  loop_ = &loop;
  receiver_ = loop.mailbox();
}

std::unique_ptr<Connection> FrontCalls::connect(std::string peer, std::uint64_t number, Loop::Clock::time_point now) {
  const Shared shared{*this, shared_->admission, shared_->buffers};
  auto plain = protocol_ == Protocol::http ? make_http1(shared, std::move(peer), number, now)
                                           : make_http2(shared, std::move(peer), number, now);
  return tls_ == nullptr ? std::move(plain) : make_tls(tls_, std::move(plain), shared_->options.limits, now);
}

std::unique_ptr<Reply> FrontCalls::begin(Call& call) {
  const Route route = route_of(call);
  const auto refuse = [&](Reply reply) {
    count(call, reply, {});
    return std::make_unique<Reply>(std::move(reply));
  };
  if (needs_token(route) && !shared_->authorization.empty()) {
    const std::string* given = find(call.headers, "authorization");
    if (!same_secret(given == nullptr ? "" : *given, shared_->authorization)) {
      Reply reply = refusal(call.protocol, 401, "a token is needed: authorization: Bearer TOKEN");
      if (call.protocol == Protocol::http) {
        reply.headers.emplace_back("www-authenticate", "Bearer");
      }
      return refuse(std::move(reply));
    }
  }
  // Its place is taken when its body is there: else who sends none would keep others out.
  if (!is_health(route) && call.place == nullptr &&
      shared_->admission.requests() >= shared_->options.limits.concurrent) {
    return refuse(refusal(call.protocol, 503, busy(*shared_)));
  }
  return nullptr;
}

void FrontCalls::finish(std::shared_ptr<Call> call) {
  const std::shared_ptr<Call> held = kept(shared_, std::move(call));
  attempt(held, [&] { route(held); });
}

void FrontCalls::attempt(const std::shared_ptr<Call>& call, const std::function<void()>& work) {
  try {
    work();
  } catch (...) {
    answer(call, failure_of(*call));
  }
}

void FrontCalls::route(const std::shared_ptr<Call>& call) {
  const Route route = route_of(*call);
  if (is_health(route)) {
    answer(call, health(*call, route, shared_->ready.load()));
    return;
  }
  if (call->place == nullptr) {  // else it is asked again
    call->place = shared_->admission.request();
  }
  if (call->place == nullptr) {
    answer(call, refused(*call, 503, busy(*shared_)));
  } else if (route == Route::infer && (call->asked || !shared_->options.traces || !traced(call->headers))) {
    infer(call);
  } else {
    hand_over(call);
  }
}

void FrontCalls::infer(const std::shared_ptr<Call>& call) {
  note(call);
  shared_->busy = loop_->now().time_since_epoch().count();
  const auto work = [shared = shared_.get(), call, receiver = receiver_]() -> Begun {
    try {
      return begin_infer(call, shared->models, shared->options.limits, receiver);
    } catch (...) {
      return {.request = nullptr, .reply = std::make_unique<Reply>(failure_of(*call))};
    }
  };
  if (bytes_to_parse(*call) <= most_in_loop || !in_worker([this, call, work]() -> Mailbox::Task {
        return [this, call, read = std::make_shared<Begun>(work())] {
          attempt(call, [&] { begun(call, std::move(*read)); });
        };
      })) {
    begun(call, work());
  }
}

void FrontCalls::begun(const std::shared_ptr<Call>& call, Begun begun) {
  const auto found = under_way_.find(call.get());
  if (found == under_way_.end()) {  // its client has gone meanwhile, or it is answered already
    if (begun.request != nullptr) {
      cancel(begun.request);
    }
  } else if (begun.not_mine) {
    hand_over(call);
  } else if (begun.reply != nullptr) {
    answer(call, std::move(*begun.reply));
  } else {
    found->second.request = begun.request;
    if (begun.ended) {
      finished(begun.request);
    }
  }
}

void FrontCalls::finished(Requests requests) {
  for (const auto& request : requests) {
    attempt(static_cast<const InferRequest&>(*request).call, [&] { finished(request); });
  }
}

void FrontCalls::finished(const std::shared_ptr<Request>& finished) {
  const auto request = std::static_pointer_cast<InferRequest>(finished);
  if (!under_way_.contains(request->call.get())) {
    return;
  }
  const auto work = [request]() -> std::optional<Reply> {
    try {
      return reply_of(*request);
    } catch (...) {
      return failure_of(*request->call);
    }
  };
  if (!long_answer(*request) || !in_worker([this, request, work]() -> Mailbox::Task {
        return [this, request, reply = work()]() mutable {
          attempt(request->call, [&] { written(request->call, std::move(reply)); });
        };
      })) {
    written(request->call, work());
  }
}

void FrontCalls::written(const std::shared_ptr<Call>& call, std::optional<Reply> reply) {
  if (reply) {
    this->reply(call, std::move(*reply));
  } else if (under_way_.contains(call.get())) {
    hand_over(call);
  }
}

void FrontCalls::hand_over(const std::shared_ptr<Call>& call) {
  if (!shared_->options.other) {
    answer(call, refused(*call, 404, "Not Found"));
    return;
  }
  if (call->asked) {
    under_way_.erase(call.get());
    shared_->options.other(call);
    return;
  }
  if (shared_->others >= shared_->most_others) {
    answer(call, refused(*call, 503, std::to_string(shared_->others) + " requests that are no infer are under way"));
    return;
  }
  UnderWay& under_way = note(call);
  under_way.request.reset();
  under_way.where = Where::other;
  ++shared_->others;
  shared_->options.other(call);
}

FrontCalls::UnderWay& FrontCalls::note(const std::shared_ptr<Call>& call) {
  const auto [found, added] = under_way_.try_emplace(call.get());
  if (added) {
    found->second.call = call;
    found->second.since = loop_->now();
  }
  return found->second;
}

void FrontCalls::reply(const std::shared_ptr<Call>& call, Reply reply) {
  if (under_way_.contains(call.get())) {
    answer(call, std::move(reply));
  }
}

void FrontCalls::answer(const std::shared_ptr<Call>& call, Reply reply) {
  const auto found = under_way_.find(call.get());
  const auto took = found == under_way_.end() ? Loop::Clock::duration(0) : Loop::Clock::now() - found->second.since;
  if (reply.size() > small_answer && !call->bytes.grow_to(reply.size())) {  // it would stay until its client takes it
    reply = refused(*call, 503, "the server has no memory left for answers, try again later");
  }
  count(*call, reply, took);
  call->place.reset();
  send(call, std::move(reply));
  if (found != under_way_.end()) {
    forget(found);
  }
}

void FrontCalls::send(const std::shared_ptr<Call>& call, Reply reply) {
  if (call->asked) {
    shared_->options.answered(call, std::move(reply));
  } else {
    loop_->reply(call, std::move(reply));
  }
}

FrontCalls::UnderWay FrontCalls::forget(const CallsUnderWay::iterator& found) {
  UnderWay forgotten = std::move(found->second);
  under_way_.erase(found);
  shared_->others -= forgotten.where == Where::other ? 1 : 0;
  return forgotten;
}

void FrontCalls::count(const Call& call, const Reply& reply, Loop::Clock::duration took) {
  if (call.asked) {
    return;
  }
  shared_->answers.add(call.protocol, reply.status);
  if (shared_->options.access_log) {
    shared_->access_log.push(
        {call.peer, call.method, call.path, reply.status, reply.size(), std::chrono::duration<double>(took).count()});
  }
}

void FrontCalls::gone(const std::shared_ptr<Call>& call) {
  const auto found = under_way_.find(call.get());
  if (found == under_way_.end()) {
    return;
  }
  const UnderWay gone = forget(found);
  if (gone.where == Where::other) {
    if (shared_->options.gone) {
      shared_->options.gone(gone.call);
    }
  } else if (gone.request != nullptr) {
    cancel(gone.request);
  }
}

void FrontCalls::cut_off() {
  while (!under_way_.empty()) {
    const UnderWay& under_way = under_way_.begin()->second;
    const std::shared_ptr<Call> call = under_way.call;
    // Of a call that a worker reads, nothing is touched.
    if (under_way.request != nullptr || under_way.where == Where::other) {
      const Reply reply = refusal(call->protocol, 503, "the server ends");
      count(*call, reply, loop_->now() - under_way.since);
      send(call, reply);
    }
    gone(call);
  }
}

void FrontCalls::quiet() {
  if (loop_->now().time_since_epoch().count() >= shared_->busy.load() + Loop::Clock::duration(quiet_for).count()) {
    shared_->buffers.trim();  // else another loop uses them
  }
}

bool FrontCalls::in_worker(std::function<Mailbox::Task()> work) {
  try {
    shared_->workers.push(
        [mailbox = loop_->mailbox(), work = std::move(work)](bool cancelled) {
          if (!cancelled) {
            const Pool::NoWaiting by_others;
            mailbox->put(work());
          }
        },
        most_workers);
    return true;
  } catch (const Error&) {
    return false;  // no thread can start
  }
}

}  // namespace ortmulti::serve
