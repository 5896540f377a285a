#include "bindings/pool_request.hpp"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "bindings/errors.hpp"
#include "bindings/gil.hpp"
#include "bindings/run_options.hpp"
#include "bindings/signals.hpp"
#include "bindings/tensors.hpp"
#include "bindings/text.hpp"
#include "core/base/error.hpp"

namespace ortmulti::bindings {

PoolRequest::PoolRequest(std::shared_ptr<Session> session, const py::object& wanted, const py::object& feed,
                         const py::object& options, std::shared_ptr<const Padding> padding)
    : padding_(std::move(padding)) {
  // A pool may convert the arguments again, with a session of the next model.
  if (!wanted.is_none() && !py::isinstance<py::sequence>(wanted)) {
    throw Error(
        ErrorKind::invalid_type,
        "output_names of a pool must be a list or tuple of str, or None for all outputs, not " + class_name(wanted));
  }
  takes_rows = true;
  given_options_ = to_run_options(options);
  if (!options.is_none()) {
    run_options = given_options_.get();
  }
  if (session) {
    convert(std::move(session), wanted, feed);
    return;
  }
  python_.wanted = wanted;
  python_.feed = RunRequest::copy_feed(feed);
}

void PoolRequest::convert(std::shared_ptr<Session> session, const py::object& wanted, const py::object& feed) {
  RunRequest& values = python_.values.emplace(*session, wanted, feed, padding_.get());
  python_.session = std::move(session);
  output_names = values.take_output_names();
  inputs = values.take_inputs();
}

void PoolRequest::prepare(const std::shared_ptr<Session>& session) {
  if (python_.session) {
    return;
  }
  const AcquireGil gil;
  convert(freed_without_gil(session), python_.wanted, python_.feed);
  python_.wanted = py::object();
  python_.feed = py::object();
}

PoolRequest::~PoolRequest() {  // NOLINT(bugprone-exception-escape): out of memory ends the process
  inputs = RunInputs();        // before the arrays that they lie over
  clear_outputs();
  if (!output_owners.empty()) {
    without_gil([&] { output_owners.clear(); });
  }
  if (!has_gil()) {
    free_without_gil(std::make_shared<Python>(std::move(python_)));
  }
}

py::list PoolRequest::take_results() {
  if (error) {
    std::rethrow_exception(error);
  }
  const auto& values = python_.values;
  if (!values) {
    throw Error(ErrorKind::fail, "the request did not run");
  }
  if (rows.outputs) {
    return values->to_python(std::exchange(rows, {}));
  }
  if (!outputs_on_device) {
    return values->to_python(std::move(outputs));
  }
  return values->to_values(std::move(outputs), std::move(output_owners));
}

void PoolRequest::await_arrival(std::weak_ptr<Pool> pool) {
  pool_ = std::move(pool);
  arrival_ = std::make_shared<Arrival>();
  receiver = thread_answers();
}

py::tuple PoolRequest::take() {
  if (!taking_.exchange(true)) {
    py::object results = py::none();
    py::object exception = py::none();
    try {
      results = take_results();
    } catch (...) {
      exception = to_python(std::current_exception());
    }
    python_.taken = py::make_tuple(std::move(results), std::move(exception), outcome == Outcome::cancelled, timing());
    taken_.store(true);
  } else if (!taken_.load()) {
    // Another thread converts the outputs. It may have released the GIL for that.
    wait_until([this](auto /*until*/) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      return taken_.load();
    });
  }
  return py::reinterpret_borrow<py::tuple>(python_.taken);
}

bool PoolRequest::cancel(const std::shared_ptr<PoolRequest>& request) {
  return without_gil([&request] {
    request->arrival_->abandon();
    const std::shared_ptr<Pool> pool = request->pool_.lock();
    return pool && pool->cancel(request);
  });
}

std::tuple<double, double, double, double, std::string, std::size_t> to_python(const RequestTiming& timing) {
  const auto seconds = [](auto duration) { return std::chrono::duration<double>(duration).count(); };
  return {seconds(timing.queued), seconds(timing.joined),   seconds(timing.copied),
          seconds(timing.ran),    to_string(timing.ran_on), timing.run_size};
}

py::object PoolRequest::timing() const {
  if (outcome != Outcome::done) {
    return py::none();
  }
  return py::cast(to_python(timing_of(*this)));
}

bool PoolRequest::follow(const py::object& follower, const py::object& complete) {
  auto& followers = python_.followers;
  followers.emplace_back(follower, complete);
  if (without_gil([this] { return arrival_->follow(); })) {
    return true;
  }
  const auto own = std::ranges::find_if(
      followers, [&](const auto& one) { return one.first.is(follower) && one.second.is(complete); });
  if (own == followers.end()) {
    return true;  // it was delivered to those before, and to this one
  }
  followers.erase(own);
  return false;
}

void PoolRequest::deliver() noexcept {  // NOLINT(bugprone-exception-escape): out of memory ends the process
  for (const auto& [follower, complete] : std::exchange(python_.followers, {})) {
    try {
      const py::tuple taken = take();
      complete(follower, taken[0], taken[1], taken[2], taken[3]);
    } catch (const std::exception&) {
      discard_as_unraisable(follower);
    }
  }
}

void PoolRequest::set_future(std::shared_ptr<Receiver> loop, py::object future) {
  receiver = std::move(loop);
  python_.future = std::move(future);
}

void PoolRequest::answer_future() {
  if (const py::object future = std::exchange(python_.future, py::object())) {
    // Also of a closed pool's request: CancelledError would say that its task was cancelled.
    bindings::answer_future(future, [this] { return take_results(); });
  }
}

}  // namespace ortmulti::bindings
