#include <pybind11/numpy.h>
#include <pybind11/stl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings/errors.hpp"
#include "bindings/gil.hpp"
#include "bindings/json_rows.hpp"
#include "bindings/python_pool.hpp"
#include "bindings/registrations.hpp"
#include "core/base/mutex.hpp"
#include "core/base/non_copyable.hpp"
#include "core/onnx/element_types.hpp"
#include "core/serve/front.hpp"
#include "core/serve/nghttp2.hpp"
#include "core/serve/route.hpp"
#include "core/serve/vector_calls.hpp"

namespace ortmulti::bindings {

using namespace py::literals;  // NOLINT(google-build-using-namespace): "name"_a

namespace {

using serve::Front;
using serve::Limits;
using serve::Reply;

/// What the loops hand to Python, in order: calls, those of them whose clients have gone, those with an answer, and
/// those with an error, which Python writes.
class Calls : NonCopyable {
 public:
  struct Event {
    std::shared_ptr<serve::Call> call;
    bool gone = false;
    std::optional<Reply> reply = std::nullopt;
    std::exception_ptr error = nullptr;
  };

  void put(Event event) {
    const MutexLock lock(mutex_);
    events_.push_back(std::move(event));
    changed_.notify_one();
  }
  void close() {
    const MutexLock lock(mutex_);
    closed_ = true;
    changed_.notify_all();
  }
  /// Waits for some; none after close().
  std::deque<Event> take() {
    const MutexLock lock(mutex_);
    changed_.wait(mutex_, [this]() ORTMULTI_REQUIRES(mutex_) { return closed_ || !events_.empty(); });
    return std::exchange(events_, {});
  }

 private:
  Mutex mutex_;
  Condition changed_;
  std::deque<Event> events_ ORTMULTI_GUARDED_BY(mutex_);
  bool closed_ ORTMULTI_GUARDED_BY(mutex_) = false;
};

std::vector<serve::Declared> declared(const std::vector<ValueInfo>& values) {
  std::vector<serve::Declared> all;
  all.reserve(values.size());
  for (const ValueInfo& value : values) {
    const ElementType* const type = value.is_tensor ? find_element_type(value.element_type) : nullptr;
    all.push_back({value.name, type == nullptr ? "" : type->protocol, value.element_type, value.shape});
  }
  return all;
}

using PythonHeaders = std::vector<std::pair<py::bytes, py::bytes>>;
PythonHeaders to_python(const serve::Headers& headers) { return {headers.begin(), headers.end()}; }
serve::Headers from_python(const PythonHeaders& headers) { return {headers.begin(), headers.end()}; }

// Status, headers, body and message: of gRPC the body is a message, or there is a message with an error.
using PythonReply = std::tuple<int, PythonHeaders, py::bytes, std::string>;

PythonReply to_python(Reply reply) {
  auto body =
      py::reinterpret_steal<py::bytes>(PyBytes_FromStringAndSize(nullptr, static_cast<py::ssize_t>(reply.size())));
  if (!body) {
    throw py::error_already_set();
  }
  char* to = PyBytes_AS_STRING(body.ptr());
  {
    const ReleaseGil nogil;
    for (const serve::Piece& piece : std::exchange(reply.body, {})) {
      to = std::ranges::copy(piece.bytes, to).out;
    }
  }
  return {reply.status, to_python(reply.headers), std::move(body), std::move(reply.message)};
}

// Returns a refusal for Python, or nothing if the call is not refused.
std::optional<PythonReply> to_python(std::unique_ptr<Reply> reply) {
  return reply == nullptr ? std::nullopt : std::optional(to_python(std::move(*reply)));
}

std::optional<std::pair<py::bytes, py::bytes>> target_of(const serve::Call& call) {
  const auto target = serve::target_of(call);
  return target ? std::optional(std::pair<py::bytes, py::bytes>(target->model, target->version)) : std::nullopt;
}

// An answer that is to be compressed, and the coding.
std::optional<std::pair<PythonReply, std::string>> plain_of(const serve::Call& call) {
  return call.plain ? std::optional(std::pair(to_python(call.plain->reply), call.plain->coding)) : std::nullopt;
}

// Returns the core's refusal of a call. That of a stream is an answer.
PythonReply refuse(const serve::Call& call, int status, const std::string& text) {
  const auto target = call.streamed ? serve::target_of(call) : std::nullopt;
  return to_python(serve::refused(call, status, text, target ? target->id : ""));
}

/// `Front` of `_core`: what `ortmulti serve` listens with, and what answers infer for other servers in the process.
class PythonFront : NonCopyable {
 public:
  PythonFront(const std::vector<int>& http, const std::vector<int>& grpc, const Limits& limits, std::string token,
              std::vector<std::string> allowed_hosts, std::string certificate, std::string key,
              std::size_t compressed_from, std::vector<std::string> long_bodies, std::size_t loops, bool access_log,
              bool traces) {
    Front::Options options{.limits = limits,
                           .token = std::move(token),
                           .allowed_hosts = std::move(allowed_hosts),
                           .certificate = std::move(certificate),
                           .key = std::move(key),
                           .compressed_from = compressed_from,
                           .long_bodies = std::move(long_bodies),
                           .loops = loops,
                           .access_log = access_log,
                           .traces = traces,
                           .other =
                               [calls = calls_, vectors = vectors_](std::shared_ptr<serve::Call> call) {
                                 if (call->asked || !vectors->add(call)) {
                                   calls->put({.call = std::move(call)});
                                 }
                               },
                           .gone =
                               [calls = calls_, vectors = vectors_](const std::shared_ptr<serve::Call>& call) {
                                 if (!vectors->gone(*call)) {
                                   calls->put({.call = call, .gone = true});
                                 }
                               },
                           .answered =
                               [calls = calls_](std::shared_ptr<serve::Call> call, Reply reply) {
                                 calls->put({.call = std::move(call), .reply = std::move(reply)});
                               }};
    const ReleaseGil nogil;
    front_ = std::make_unique<Front>(std::move(options), http, grpc);
    vectors_->open(*front_);
  }
  ~PythonFront() {
    const ReleaseGil nogil;
    if (getpid() != process_) {             // a fork's child has none of its threads
      static_cast<void>(front_.release());  // NOLINT(bugprone-unused-return-value)
      return;
    }
    vectors_->close();
    calls_->close();
    front_.reset();
  }

  // Returns the calls that are there: each with whether its client has gone, and its answer or error. None after the
  // end.
  using Taken = std::tuple<std::shared_ptr<serve::Call>, bool, std::optional<PythonReply>, std::optional<py::object>>;
  std::vector<Taken> take() {
    auto events = without_gil([this] { return calls_->take(); });
    std::vector<Taken> taken;
    taken.reserve(events.size());
    for (Calls::Event& event : events) {
      std::optional<PythonReply> reply;
      try {
        reply = event.reply ? std::optional(to_python(std::move(*event.reply))) : std::nullopt;
      } catch (const std::exception&) {  // else nobody would take the next call
        reply = PythonReply(503, {}, py::bytes(), "the server has no memory left for this answer");
      }
      taken.emplace_back(freed_without_gil(std::move(event.call)), event.gone, std::move(reply),
                         event.error ? std::optional(bindings::to_python(event.error)) : std::nullopt);
    }
    return taken;
  }

  std::shared_ptr<serve::Call> call(bool grpc, std::string method, std::string path, const PythonHeaders& headers,
                                    std::string peer, bool streamed) {
    auto call = freed_without_gil(front_->call(grpc ? serve::Protocol::grpc : serve::Protocol::http));
    call->method = std::move(method);
    call->path = std::move(path);
    call->headers = from_python(headers);
    call->peer = std::move(peer);
    call->streamed = streamed;
    return call;
  }
  std::shared_ptr<serve::Call> instead_of(serve::Call& other, std::optional<std::size_t> size) {
    return freed_without_gil(front_->instead_of(other, size));
  }
  std::optional<PythonReply> begin(serve::Call& call) {
    return to_python(without_gil([&] { return front_->begin(call); }));
  }
  std::optional<PythonReply> receive(serve::Call& call, const py::bytes& bytes) {
    const std::string_view text = bytes;
    return to_python(without_gil([&] { return front_->receive(call, text); }));
  }
  void ask(std::shared_ptr<serve::Call> call) { front_->ask(std::move(call)); }
  void forget(std::shared_ptr<serve::Call> call) { front_->forget(std::move(call)); }

  void reply(const std::shared_ptr<serve::Call>& call, int status, const PythonHeaders& headers, const py::bytes& body,
             std::string message) {
    Reply reply{.status = status, .headers = from_python(headers), .body = {}, .message = std::move(message)};
    const std::string_view bytes = body;
    const ReleaseGil nogil;  // the caller keeps the body
    reply.body.push_back(serve::piece_of(std::string(bytes)));
    front_->reply(call, std::move(reply));
  }

  // Requests of vectors; none after the end.
  std::optional<std::shared_ptr<serve::VectorGroup>> take_vectors(std::size_t most) {
    auto group = without_gil([&] { return vectors_->take(most); });
    return group == nullptr ? std::nullopt : std::optional(freed_without_gil(std::move(group)));
  }
  // By model: the texts that were answered in groups, and their tokens.
  std::map<std::string, std::pair<std::uint64_t, std::uint64_t>> counts_of_texts() const {
    std::map<std::string, std::pair<std::uint64_t, std::uint64_t>> counts;
    for (const auto& [name, counted] : without_gil([this] { return vectors_->counts(); })) {
      counts[name] = {counted.texts, counted.tokens};
    }
    return counts;
  }

  void put_model(const std::string& name, std::string version, const PythonPool& pool, bool joins, bool counts_rows,
                 bool recurrent, std::size_t max_rows, std::optional<double> timeout, bool may_override, int priority) {
    auto session = pool.session();
    if (!session) {
      return;  // Python answers
    }
    const auto model = std::make_shared<serve::ServedModel>();
    model->name = name;
    model->version = std::move(version);
    model->pool = pool.get();
    model->inputs = declared(session->inputs());
    model->optional = declared(session->overridable_initializers());
    model->outputs = declared(session->outputs());
    model->joins = joins;
    model->counts_rows = counts_rows;
    model->recurrent = recurrent;
    model->max_rows = max_rows;
    model->padding = pool.batching().padding;
    model->timeout = timeout;
    model->may_override = may_override;
    model->priority = priority;
    const ReleaseGil nogil;
    session.reset();  // it may be the last
    front_->models().put(model);
  }
  // Requests, or rows, that were answered, and when the last one was, in milliseconds since 1970.
  std::pair<std::uint64_t, std::int64_t> counts_of(const std::string& name) const {
    const auto model = front_->models().find(name);
    return model == nullptr ? std::pair<std::uint64_t, std::int64_t>()
                            : std::pair(model->counts->inferences.load(), model->counts->last.load());
  }

  void renew_certificate() { front_->renew_certificate(); }
  void set_ready(bool ready) { front_->set_ready(ready); }
  void end() {
    front_->end();
    vectors_->close();
    calls_->close();
  }
  std::map<std::pair<std::string, std::string>, std::uint64_t> answers() const { return front_->answers(); }
  // An answer's time in seconds since 1970, peer, method, path and id as sent, status, bytes, and how many seconds it
  // took.
  using AccessLine = std::tuple<double, std::string, py::bytes, py::bytes, py::bytes, int, std::size_t, double>;
  std::vector<AccessLine> take_access_log() {
    std::vector<AccessLine> lines;
    for (const Front::Access& each : without_gil([this] { return front_->take_access_log(); })) {
      lines.emplace_back(std::chrono::duration<double>(each.at.time_since_epoch()).count(), each.peer, each.method,
                         each.path, each.id, each.status, each.bytes, each.seconds);
    }
    return lines;
  }

 private:
  const std::shared_ptr<Calls> calls_ = std::make_shared<Calls>();
  const std::shared_ptr<serve::VectorCalls> vectors_ = std::make_shared<serve::VectorCalls>(serve::VectorCalls::Python{
      .ask = [calls = calls_](std::shared_ptr<serve::Call> call) { calls->put({.call = std::move(call)}); },
      .fail = [calls = calls_](
                  std::shared_ptr<serve::Call> call,
                  std::exception_ptr error) { calls->put({.call = std::move(call), .error = std::move(error)}); }});
  std::unique_ptr<Front> front_;
  const pid_t process_ = getpid();
};

Limits make_limits(std::size_t memory, std::size_t body, std::size_t json, std::size_t header, std::size_t tensors,
                   std::size_t concurrent, std::size_t connections, std::size_t streams, double receive, double send,
                   double idle, double end) {
  using Seconds = Limits::Seconds;
  return {memory,           body,          json,          header,      tensors, concurrent, connections, streams,
          Seconds(receive), Seconds(send), Seconds(idle), Seconds(end)};
}

}  // namespace

void register_serve(py::module_& module) {
  register_vectors(module);
  py::class_<serve::Call, std::shared_ptr<serve::Call>>(module, "FrontCall", py::buffer_protocol())
      .def_buffer([](const serve::Call& call) {
        const std::string_view body = call.body.text();
        return py::buffer_info(reinterpret_cast<const std::uint8_t*>(body.data()),
                               static_cast<py::ssize_t>(body.size()));
      })
      .def_property_readonly("grpc", [](const serve::Call& call) { return call.protocol == serve::Protocol::grpc; })
      .def_readonly("method", &serve::Call::method)
      .def_property_readonly("path", [](const serve::Call& call) { return py::bytes(call.path); })
      .def_property_readonly("headers", [](const serve::Call& call) { return to_python(call.headers); })
      // Not a copy: it may be large, and is counted once.
      .def_property_readonly("body", [](const py::object& call) { return py::memoryview(call); })
      .def_readonly("streamed", &serve::Call::streamed)
      .def_readonly("compressed", &serve::Call::compressed)
      .def("plain", &plain_of)
      .def("reserve", &serve::Call::reserve, "bytes"_a)
      .def("reserve_texts", &serve::reserve_texts, "answer"_a)
      .def_readonly("peer", &serve::Call::peer)
      .def_readonly("asked", &serve::Call::asked)
      .def_property_readonly("health", [](const serve::Call& call) { return serve::is_health(serve::route_of(call)); })
      .def_property_readonly("target", &target_of)
      .def_property_readonly(
          "timing",
          [](const serve::Call& call) { return call.timing ? std::optional(to_python(*call.timing)) : std::nullopt; })
      .def("refuse", &refuse, "status"_a, "text"_a);
  py::class_<Limits>(module, "FrontLimits")
      .def(py::init(&make_limits), py::kw_only(), "memory"_a, "body"_a, "json"_a, "header"_a, "tensors"_a,
           "concurrent"_a, "connections"_a, "streams"_a, "receive"_a, "send"_a, "idle"_a, "end"_a);
  py::class_<PythonFront>(module, "Front")
      .def(py::init<const std::vector<int>&, const std::vector<int>&, const Limits&, std::string,
                    std::vector<std::string>, std::string, std::string, std::size_t, std::vector<std::string>,
                    std::size_t, bool, bool>(),
           py::kw_only(), "http"_a, "grpc"_a, "limits"_a, "token"_a, "allowed_hosts"_a, "certificate"_a, "key"_a,
           "compressed_from"_a, "long_bodies"_a, "loops"_a, "access_log"_a, "traces"_a)
      .def("take", &PythonFront::take)
      .def("take_vectors", &PythonFront::take_vectors, "most"_a)
      .def("counts_of_texts", &PythonFront::counts_of_texts)
      .def("call", &PythonFront::call, "grpc"_a, "method"_a, "path"_a, "headers"_a, "peer"_a, "streamed"_a)
      .def("instead_of", &PythonFront::instead_of, "other"_a, "size"_a)
      .def("begin", &PythonFront::begin, "call"_a)
      .def("receive", &PythonFront::receive, "call"_a, "bytes"_a)
      .def("ask", &PythonFront::ask, "call"_a, Nogil())
      .def("forget", &PythonFront::forget, "call"_a, Nogil())
      .def("reply", &PythonFront::reply, "call"_a, "status"_a, "headers"_a, "body"_a, "message"_a)
      .def("put_model", &PythonFront::put_model, "name"_a, "version"_a, "pool"_a, py::kw_only(), "joins"_a,
           "counts_rows"_a, "recurrent"_a, "max_rows"_a, "timeout"_a, "may_override"_a, "priority"_a)
      .def("counts_of", &PythonFront::counts_of, "name"_a, Nogil())
      .def("renew_certificate", &PythonFront::renew_certificate, Nogil())
      .def("set_ready", &PythonFront::set_ready, "ready"_a)
      .def("end", &PythonFront::end, Nogil())
      .def("answers", &PythonFront::answers)
      .def("take_access_log", &PythonFront::take_access_log);
  module.def("json_rows", &json_rows, "rows"_a, "head"_a, "tail"_a, "around"_a = Around(), "base64"_a = false);
  module.def("why_no_http2", &serve::why_no_http2);
  module.def("to_grpc", [](int status) { return static_cast<int>(serve::to_grpc(status)); }, "status"_a);
}

}  // namespace ortmulti::bindings
