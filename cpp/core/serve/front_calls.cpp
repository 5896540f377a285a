#include "core/serve/front_calls.hpp"

#include <algorithm>
#include <exception>
#include <string_view>

#include "core/base/error.hpp"
#include "core/base/text.hpp"
#include "core/pool/pool.hpp"
#include "core/serve/coding.hpp"
#include "core/serve/route.hpp"

namespace ortmulti::serve {
namespace {

// A worker reads and writes bodies of more bytes, or numbers, than this: a megabyte of JSON takes some milliseconds.
constexpr std::size_t most_in_loop = std::size_t{64} << 10;
constexpr std::size_t most_numbers = 8192;
// The most bytes of a request that is no infer and has no texts.
constexpr std::size_t most_of_others = std::size_t{64} << 10;
// An answer of up to so many bytes is sent without a budget, as health is.
constexpr std::size_t small_answer = 4096;
constexpr std::chrono::seconds quiet_for{3};

bool traced(const Headers& headers) {
  return std::ranges::any_of(headers, [](const auto& header) {
    return header.first == "traceparent" || header.first == "tracestate" || header.first == "baggage";
  });
}

std::string busy(const FrontShared& shared) {
  return std::to_string(shared.admission.requests()) + " requests are under way, which is the limit";
}

// "Example.org:8000" is "example.org".
bool is_allowed_host(const Headers& headers, const std::vector<std::string>& allowed) {
  const std::string* const host = find(headers, "host");
  if (allowed.empty() || host == nullptr) {
    return allowed.empty();
  }
  const std::size_t bracket = host->starts_with('[') ? std::min(host->find(']'), host->size()) : 0;
  return std::ranges::find(allowed, lower_case(host->substr(0, host->find(':', bracket)))) != allowed.end();
}

// How long the body of a request may be that is no infer.
std::size_t most_bytes(const Call& call, const Front::Options& options) {
  const auto& paths = options.long_bodies;
  const bool is_long = call.protocol == Protocol::http && call.method == "POST" &&
                       std::ranges::find(paths, without_slashes(call.path)) != paths.end();
  return is_long ? options.limits.json : most_of_others;
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

FrontCalls::FrontCalls(std::shared_ptr<FrontShared> shared, Protocol protocol)
    : shared_(std::move(shared)), protocol_(protocol) {}

void FrontCalls::attach(Loop& loop) {
  loop_ = &loop;
  receiver_ = std::make_shared<CountedAnswers>(loop.mailbox());
}

std::unique_ptr<Connection> FrontCalls::connect(std::string peer, std::uint64_t number, Loop::Clock::time_point now) {
  const Shared shared{*this, shared_->admission, shared_->buffers};
  auto plain = protocol_ == Protocol::http ? make_http1(shared, std::move(peer), number, now)
                                           : make_http2(shared, std::move(peer), number, now);
  auto tls = shared_->tls(protocol_);
  return tls == nullptr ? std::move(plain) : make_tls(std::move(tls), std::move(plain), shared_->options.limits, now);
}

std::unique_ptr<Reply> FrontCalls::begin(Call& call) {
  const Route route = route_of(call);
  const auto refuse = [&](Reply reply) {
    count(call, reply, {});
    return std::make_unique<Reply>(std::move(reply));
  };
  if (needs_token(route) && !shared_->options.token.empty()) {
    const std::string* given = find(call.headers, "authorization");
    if (!same_secret(bearer_token(given == nullptr ? "" : *given), shared_->options.token)) {
      Reply reply = refusal(call.protocol, 401, "a token is needed: authorization: Bearer TOKEN", call.path);
      if (call.protocol == Protocol::http) {
        reply.headers.emplace_back("www-authenticate", "Bearer");
      }
      return refuse(std::move(reply));
    }
  }
  if (route == Route::unknown) {  // before its messages: clients of reflection wait with their stream open
    return refuse(unknown_method(call));
  }
  if (!is_health(route) && !is_allowed_host(call.headers, shared_->options.allowed_hosts)) {
    return refuse(
        refusal(call.protocol, 403, "this server is not to be asked by this name: see --allowed-hosts", call.path));
  }
  // Its place is taken when its body is there: else who sends none would keep others out.
  if (!is_health(route) && call.place == nullptr &&
      shared_->admission.requests() >= shared_->options.limits.concurrent) {
    return refuse(refusal(call.protocol, 503, busy(*shared_), call.path));
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
  if (is_health(route) && !call->compressed) {
    answer(call, health(*call, route, shared_->ready.load()));
    return;
  }
  if (call->place == nullptr) {  // else it is asked again
    call->place = shared_->admission.request();
  }
  if (call->place == nullptr) {
    answer(call, refused(*call, 503, busy(*shared_)));
  } else if (route == Route::infer && !call->compressed &&
             (call->asked || !shared_->options.traces || !traced(call->headers))) {
    infer(call);
  } else if (const std::size_t most = most_bytes(*call, shared_->options);
             route != Route::infer && call->body.size() > most) {
    answer(call, refused(*call, 413,
                         "the body has " + std::to_string(call->body.size()) + " bytes, and " + std::to_string(most) +
                             " are allowed here"));
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
  const auto found = under_way_.find(request->call.get());
  if (found == under_way_.end()) {
    return;
  }
  const auto work = [request]() -> std::optional<Reply> {
    try {
      return reply_of(*request);
    } catch (...) {
      return failure_of(*request->call);
    }
  };
  const bool is_long = long_answer(*request);
  if (is_long) {
    found->second.request.reset();
  }
  if (!is_long || !in_worker([this, request, work]() -> Mailbox::Task {
        return [this, request, reply = work()]() mutable {
          attempt(request->call, [&] { written(request->call, std::move(reply)); });
        };
      })) {
    written(request->call, work());
  }
}

void FrontCalls::written(const std::shared_ptr<Call>& call, std::optional<Reply> reply) {
  if (!under_way_.contains(call.get())) {
    return;
  }
  if (reply) {
    call->plain = to_be_compressed(*call, *reply);
    if (!call->plain) {
      answer(call, std::move(*reply));
      return;
    }
  }
  hand_over(call);
}

// If there is no memory or no place for the compression, the answer is sent as it is.
std::optional<Call::Plain> FrontCalls::to_be_compressed(Call& call, Reply& reply) const {
  const std::size_t size = reply.size();
  if (call.protocol != Protocol::http || reply.status != 200 || size < shared_->options.compressed_from ||
      !shared_->options.other || shared_->others >= shared_->most_others) {
    return std::nullopt;
  }
  const bool binary = find(reply.headers, "inference-header-content-length") != nullptr;
  Call::Plain plain{
      .reply = {}, .coding = std::string(accepted_coding(call.headers, binary)), .bytes = call.bytes.another()};
  constexpr std::size_t copies = 2;  // beside the answer: of all of it, and compressed
  if (plain.coding.empty() || !call.bytes.grow_to(size) || !plain.bytes.grow_to(copies * size)) {
    return std::nullopt;
  }
  plain.reply = std::move(reply);
  return plain;
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
    call->plain.reset();
    answer(call, std::move(reply));
  }
}

void FrontCalls::answer(const std::shared_ptr<Call>& call, Reply reply) {
  const auto found = under_way_.find(call.get());
  const auto took = found == under_way_.end() ? Loop::Clock::duration(0) : Loop::Clock::now() - found->second.since;
  if (reply.size() > small_answer && !call->bytes.grow_to(reply.size())) {  // it would stay until its client takes it
    reply = refused(*call, 503, no_memory_for_answers);
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
    shared_->access_log.push({std::chrono::system_clock::now(), call.peer, call.method, call.path, call.shown_id(),
                              reply.status, reply.size(), std::chrono::duration<double>(took).count()});
  }
}

void FrontCalls::gone(const std::shared_ptr<Call>& call) {
  call->gone = true;
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
      const Reply reply = refusal(call->protocol, 503, "the server ends", call->path);
      count(*call, reply, loop_->now() - under_way.since);
      send(call, reply);
    }
    gone(call);
  }
}

bool FrontCalls::tidy() {
  const auto quiet_from = shared_->busy.load() + Loop::Clock::duration(quiet_for).count();
  const bool quiet = loop_->now().time_since_epoch().count() >= quiet_from;  // of all loops
  if (quiet) {
    shared_->buffers.trim();
  }
  return quiet;
}

bool FrontCalls::in_worker(std::function<Mailbox::Task()> work) {
  return shared_->work([mailbox = loop_->mailbox(), work = std::move(work)] { mailbox->put(work()); });
}

}  // namespace ortmulti::serve
