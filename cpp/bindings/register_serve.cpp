#include <pybind11/stl.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings/gil.hpp"
#include "bindings/python_pool.hpp"
#include "bindings/registrations.hpp"
#include "core/base/mutex.hpp"
#include "core/base/non_copyable.hpp"
#include "core/onnx/element_types.hpp"
#include "core/serve/front.hpp"
#include "core/serve/nghttp2.hpp"

namespace ortmulti::bindings {

using namespace py::literals;  // NOLINT(google-build-using-namespace): "name"_a

namespace {

using serve::Front;
using serve::Limits;
using serve::Reply;

/// What the loops hand to Python, in order: calls, and those of them whose clients have gone.
class Calls : NonCopyable {
 public:
  using Event = std::pair<std::shared_ptr<serve::Call>, bool>;

  void put(std::shared_ptr<serve::Call> call, bool gone) {
    const MutexLock lock(mutex_);
    events_.emplace_back(std::move(call), gone);
    changed_.notify_one();
  }
  void close() {
    const MutexLock lock(mutex_);
    closed_ = true;
    changed_.notify_all();
  }
  /// Waits; nothing after close().
  std::optional<Event> next() {
    const MutexLock lock(mutex_);
    changed_.wait(mutex_, [this]() ORTMULTI_REQUIRES(mutex_) { return closed_ || !events_.empty(); });
    if (events_.empty()) {
      return std::nullopt;
    }
    Event event = std::move(events_.front());
    events_.pop_front();
    return event;
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

/// `Front` of `_core`: what `ortmulti serve` listens with.
class PythonFront : NonCopyable {
 public:
  PythonFront(const std::vector<int>& http, const std::vector<int>& grpc, const Limits& limits, std::string token,
              std::vector<std::string> allowed_hosts, std::string certificate, std::string key,
              std::size_t compressed_from, std::size_t loops, bool access_log, bool traces) {
    Front::Options options{
        .limits = limits,
        .token = std::move(token),
        .allowed_hosts = std::move(allowed_hosts),
        .certificate = std::move(certificate),
        .key = std::move(key),
        .compressed_from = compressed_from,
        .loops = loops,
        .access_log = access_log,
        .traces = traces,
        .other = [calls = calls_](std::shared_ptr<serve::Call> call) { calls->put(std::move(call), false); },
        .gone = [calls = calls_](const std::shared_ptr<serve::Call>& call) { calls->put(call, true); }};
    const ReleaseGil nogil;
    front_ = std::make_unique<Front>(std::move(options), http, grpc);
  }
  ~PythonFront() {
    const ReleaseGil nogil;
    calls_->close();
    front_.reset();
  }

  std::optional<Calls::Event> next() {
    auto event = calls_->next();
    if (event) {
      event->first = freed_without_gil(std::move(event->first));
    }
    return event;
  }

  void reply(const std::shared_ptr<serve::Call>& call, int status, const serve::Headers& headers, const py::bytes& body,
             std::string message) {
    Reply reply{.status = status, .headers = headers, .body = {}, .message = std::move(message)};
    reply.body.push_back(serve::piece_of(body));
    const ReleaseGil nogil;
    front_->reply(call, std::move(reply));
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
    calls_->close();
  }
  std::map<std::pair<std::string, std::string>, std::uint64_t> answers() const { return front_->answers(); }
  // Of each answer: the peer, the method, the path as sent, the status, bytes and seconds.
  std::vector<std::tuple<std::string, py::bytes, py::bytes, int, std::size_t, double>> take_access_log() {
    std::vector<std::tuple<std::string, py::bytes, py::bytes, int, std::size_t, double>> lines;
    for (const Front::Access& each : without_gil([this] { return front_->take_access_log(); })) {
      lines.emplace_back(each.peer, each.method, each.path, each.status, each.bytes, each.seconds);
    }
    return lines;
  }

 private:
  const std::shared_ptr<Calls> calls_ = std::make_shared<Calls>();
  std::unique_ptr<Front> front_;
};

Limits make_limits(std::size_t memory, std::size_t body, std::size_t json, std::size_t header, std::size_t tensors,
                   std::size_t concurrent, std::size_t connections, std::size_t streams, double receive, double send,
                   double idle, double end) {
  using Seconds = Limits::Seconds;
  return {memory,           body,          json,          header,      tensors, concurrent, connections, streams,
          Seconds(receive), Seconds(send), Seconds(idle), Seconds(end)};
}

std::vector<std::pair<py::bytes, py::bytes>> headers_of(const serve::Call& call) {
  return {call.headers.begin(), call.headers.end()};
}

// An answer that is to be compressed: its headers and its body.
std::optional<std::pair<std::vector<std::pair<py::bytes, py::bytes>>, py::bytes>> plain_of(const serve::Call& call) {
  if (!call.plain) {
    return std::nullopt;
  }
  const Reply& plain = *call.plain;
  py::bytes body(nullptr, plain.size());
  char* at = PyBytes_AS_STRING(body.ptr());
  for (const serve::Piece& piece : plain.body) {
    at = std::ranges::copy(piece.bytes, at).out;
  }
  return std::pair(std::vector<std::pair<py::bytes, py::bytes>>(plain.headers.begin(), plain.headers.end()),
                   std::move(body));
}

}  // namespace

void register_serve(py::module_& module) {
  py::class_<serve::Call, std::shared_ptr<serve::Call>>(module, "FrontCall")
      .def_property_readonly("grpc", [](const serve::Call& call) { return call.protocol == serve::Protocol::grpc; })
      .def_readonly("method", &serve::Call::method)
      .def_property_readonly("path", [](const serve::Call& call) { return py::bytes(call.path); })
      .def_property_readonly("headers", &headers_of)
      .def_property_readonly("body", [](const serve::Call& call) { return py::bytes(call.body.text()); })
      .def_readonly("streamed", &serve::Call::streamed)
      .def_readonly("compressed", &serve::Call::compressed)
      .def_property_readonly("plain", &plain_of)
      .def_readonly("peer", &serve::Call::peer)
      .def(
          "count",
          [](serve::Call& call, std::size_t bytes) {
            return call.bytes_beside.grow_to(call.bytes_beside.count() + bytes);
          },
          "bytes"_a);
  py::class_<Limits>(module, "FrontLimits")
      .def(py::init(&make_limits), py::kw_only(), "memory"_a, "body"_a, "json"_a, "header"_a, "tensors"_a,
           "concurrent"_a, "connections"_a, "streams"_a, "receive"_a, "send"_a, "idle"_a, "end"_a);
  py::class_<PythonFront>(module, "Front")
      .def(py::init<const std::vector<int>&, const std::vector<int>&, const Limits&, std::string,
                    std::vector<std::string>, std::string, std::string, std::size_t, std::size_t, bool, bool>(),
           py::kw_only(), "http"_a, "grpc"_a, "limits"_a, "token"_a, "allowed_hosts"_a, "certificate"_a, "key"_a,
           "compressed_from"_a, "loops"_a, "access_log"_a, "traces"_a)
      .def("next", &PythonFront::next, Nogil())
      .def("reply", &PythonFront::reply, "call"_a, "status"_a, "headers"_a, "body"_a, "message"_a)
      .def("put_model", &PythonFront::put_model, "name"_a, "version"_a, "pool"_a, py::kw_only(), "joins"_a,
           "counts_rows"_a, "recurrent"_a, "max_rows"_a, "timeout"_a, "may_override"_a, "priority"_a)
      .def("counts_of", &PythonFront::counts_of, "name"_a, Nogil())
      .def("renew_certificate", &PythonFront::renew_certificate, Nogil())
      .def("set_ready", &PythonFront::set_ready, "ready"_a)
      .def("end", &PythonFront::end, Nogil())
      .def("answers", &PythonFront::answers)
      .def("take_access_log", &PythonFront::take_access_log);
  module.def("why_no_http2", &serve::why_no_http2);
}

}  // namespace ortmulti::bindings
