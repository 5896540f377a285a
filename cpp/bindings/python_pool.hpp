#pragma once

#include <pybind11/stl.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bindings/answers.hpp"
#include "bindings/call.hpp"
#include "bindings/errors.hpp"
#include "bindings/gil.hpp"
#include "bindings/pool_request.hpp"
#include "bindings/python_call.hpp"
#include "bindings/signals.hpp"
#include "bindings/text.hpp"
#include "bindings/token_block.hpp"
#include "core/base/async_runs.hpp"
#include "core/base/error.hpp"
#include "core/base/timeline.hpp"
#include "core/pool/pool.hpp"
#include "core/pool/runners.hpp"

namespace ortmulti::bindings {

// An event loop's thread should not wait so long; asyncio's debug mode warns from there on, too.
constexpr std::chrono::milliseconds longest_in_loop{100};

/// A function that calls the object, and `not_called` where that raises. To be called without the GIL; None: empty.
template <typename Function>
Function to_function(const py::object& call, auto to_arguments, auto not_called) {
  if (call.is_none()) {
    return {};
  }
  const std::shared_ptr<py::object> held(new py::object(call), [](py::object* object) {
    const AcquireGil gil;
    delete object;
  });
  return [held, to_arguments, not_called](const auto&... arguments) {
    const AcquireGil gil;
    try {
      (*held)(*to_arguments(arguments...));
    } catch (py::error_already_set& error) {
      error.discard_as_unraisable(*held);
      const ReleaseGil nogil;
      not_called(arguments...);
    }
  };
}

/// Has Python make sessions of a CUDA graph: calls the object with the graphs, the key, and how many.
inline ShapeGraphs::Wanted to_graph_wanted(const py::object& call) {
  return to_function<ShapeGraphs::Wanted>(
      call,
      [](const auto& graphs, const std::string& key, std::size_t sessions) {
        return py::make_tuple(freed_without_gil(graphs), py::bytes(key), sessions);
      },
      [](const auto& graphs, const std::string& key, std::size_t /*sessions*/) {
        graphs->not_made(key, "nobody makes its sessions");
      });
}

/// Has Python make a session of one thread.
inline CpuSessions::Wanted to_one_thread_wanted(const py::object& call) {
  return to_function<CpuSessions::Wanted>(
      call, [](const auto& sessions) { return py::make_tuple(freed_without_gil(sessions)); },
      [](const auto& sessions) { sessions->not_made("nobody makes it"); });
}

/// A request that an event loop waits for, to be cancelled: a capsule, since it is made for each. The request has its
/// future, which has the task that has this.
using AsyncRequest = std::weak_ptr<PoolRequest>;

inline py::capsule to_capsule(const std::shared_ptr<PoolRequest>& request) {
  auto held = std::make_unique<AsyncRequest>(request);
  py::capsule capsule(held.get(), [](void* pointer) { delete static_cast<AsyncRequest*>(pointer); });
  static_cast<void>(held.release());  // NOLINT(bugprone-unused-return-value): the capsule's now
  return capsule;
}

/// `Pool` of `_core`: converts, releases the GIL, and lets Python handle signals while it waits.
class PythonPool : NonCopyable {
 public:
  PythonPool(std::optional<std::size_t> max_waiting, Batching batching, std::optional<double> trim_after,
             bool reject_late)
      : batching_(std::move(batching)) {
    Pool::Options options;
    options.max_waiting = max_waiting;
    options.batching = batching_;
    options.reject_late = reject_late;
    if (trim_after) {
      options.trim_after = to_duration(*trim_after);
    }
    const ReleaseGil nogil;  // it takes a lock of the process's
    pool_ = Pool::make(options);
  }
  ~PythonPool() {
    const ReleaseGil nogil;  // closing waits for what runs, and the session may be the last reference
    pool_->close(true);
    pool_.reset();
    session_.store(nullptr);
  }

  // Each of the session's runners that run at first runs the feeds before, all at the same time.
  void add(const std::shared_ptr<Session>& session, int in_flight, const py::list& feeds, int warm_up_runs,
           const std::shared_ptr<Timeline>& timeline, const py::object& run_options, const py::object& graph_wanted,
           std::uint64_t graph_after, std::size_t max_graphs, const py::object& one_thread_wanted) {
    const Serving serving{.in_flight = in_flight,
                          .one_thread_wanted = to_one_thread_wanted(one_thread_wanted),
                          .graph_wanted = to_graph_wanted(graph_wanted),
                          .graph_rule = {.runs_before_capture = graph_after, .max_shapes = max_graphs}};
    const WarmUp first = first_runs(feeds, warm_up_runs, timeline, [&](const py::object& feed) {
      return std::make_shared<PoolRequest>(session, py::none(), feed, run_options);
    });
    const ReleaseGil nogil;
    add_session(*pool_, session, serving, first);
    std::shared_ptr<Session> none;
    session_.compare_exchange_strong(none, session);
  }

  // The inputs' names and shapes, with numbers, names and None.
  void check_inputs(const std::vector<std::pair<std::string, std::vector<py::object>>>& inputs) const {
    std::vector<ValueInfo> declared;
    for (const auto& [name, shape] : inputs) {
      ValueInfo& input = declared.emplace_back();
      input.name = name;
      for (const py::object& size : shape) {
        input.shape.push_back(py::isinstance<py::int_>(size) ? size.cast<std::int64_t>() : -1);
        input.dimension_names.push_back(py::isinstance<py::str>(size) ? size.cast<std::string>() : "");
      }
    }
    batching_.check_inputs(declared);
  }

  const std::shared_ptr<Pool>& get() const noexcept { return pool_; }
  /// One of the first sessions, for its inputs and outputs; null if there is none yet.
  std::shared_ptr<Session> session() const { return session_.load(); }
  const Batching& batching() const noexcept { return batching_; }

  void set_padding(const Padding& padding) {
    batching_.padding = std::make_shared<const Padding>(padding);
    const ReleaseGil nogil;
    pool_->set_padding(batching_.padding);
  }

  // Puts a device to sleep at a level that keeps its sessions. `timeout`: for the runs under way, in seconds.
  void sleep(const Device& device, SleepLevel level, bool pinned, bool auto_wake, std::optional<double> timeout,
             const std::shared_ptr<Timeline>& timeline) {
    const auto sleeper = without_gil(
        [&] { return make_sleeper(pool_, device, level, pinned ? HostCopy::pinned : HostCopy::none, timeline); });
    put_to_sleep(device, sleeper, auto_wake, timeout);
  }

  // The same at a level that frees the sessions' runners. `make` begins to add others, and calls its argument when they
  // are there, with None, or with an exception. Returns whether it is to be called: not where the device has no
  // runners.
  bool sleep_sessions(const Device& device, SleepLevel level, const py::object& make, bool auto_wake,
                      std::optional<double> timeout) {
    const auto maker = std::make_shared<PythonCall>(make);
    const auto sleeper = std::make_shared<DeviceSleep>(level);
    const auto called = std::make_shared<std::atomic<bool>>(false);
    sleeper->sleep = [called](Request::Clock::time_point /*until*/) { return *called = true; };
    sleeper->wake = [maker] { maker->wait(); };
    put_to_sleep(device, sleeper, auto_wake, timeout);
    return *called;
  }

  py::list run(const py::object& output_names, const py::object& input_feed, const Call& call) {
    const auto request = make_request(output_names, input_feed, call);
    if (request->caller == 0) {
      request->caller = static_cast<std::uint64_t>(this_thread());  // whose requests come one after another
    }
    bool submitted = false;
    {
      const ReleaseGil nogil;
      const bool sees_signals = this_thread() == getpid();
      if (!pool_->run_here(*request, sees_signals)) {
        request->endable = true;
        request->await_arrival(pool_);
        pool_->submit(request, std::nullopt);
        submitted = true;
      }
    }
    if (submitted) {
      wait_for(request);
    }
    if (request->outcome == Request::Outcome::done) {  // else its run may still be under way
      note_waited(request->ended - request->submitted);
    }
    return request->take_results();
  }

  // Runs a block of one text in this thread, if a session is idle; else submits it. Waits for its answer.
  void run_tokens(const std::shared_ptr<TokenBlock>& block) {
    const auto begin = Request::Clock::now();
    const bool here = without_gil([&] { return block->run_here(*pool_, this_thread() == getpid()); });
    if (!here) {
      submit_tokens(block, true, false);
      wait_until([&](auto until) { return block->arrival().wait(until); });
    }
    note_waited(Request::Clock::now() - begin);
  }

  // `waits`: for room in the queue; else `limited` refuses what has no room. May be called again after an error, with
  // another pool.
  void submit_tokens(const std::shared_ptr<TokenBlock>& block, bool waits, bool limited) {
    const bool all = without_gil(
        [&] { return block->submit(pool_, waits || limited ? std::optional(Request::Clock::now()) : std::nullopt); });
    if (all) {
      return;
    }
    if (!waits) {
      throw without_gil([&] { return pool_->reject(block->left()); });
    }
    wait_until([&](auto until) { return block->submit(pool_, until); });
  }

  // `wait`: for room in the queue, in seconds; none: as long as it takes.
  std::shared_ptr<PoolRequest> submit(const py::object& output_names, const py::object& input_feed,
                                      std::optional<double> wait, bool limited, const Call& call) {
    auto request = make_request(output_names, input_feed, call);
    request->endable = true;
    request->await_arrival(pool_);
    if (submit_now(request, limited)) {
      return request;
    }
    if (!wait_until([&](auto until) { return pool_->submit(request, until); }, wait)) {
      throw without_gil([&] { return pool_->reject(); });
    }
    return request;
  }

  // Adds a request for each feed, or in its place the exception of what cannot be one. A signal's is raised: those
  // before are added then.
  void submit_many(const py::object& output_names, const py::list& feeds, const Call& call, py::list& requests) {
    for (const py::handle feed : feeds) {
      py::object added;
      try {
        added = py::cast(submit(output_names, py::reinterpret_borrow<py::object>(feed), std::nullopt, true, call));
      } catch (...) {
        added = to_python(std::current_exception());
        if (PyErr_GivenExceptionMatches(added.ptr(), PyExc_Exception) == 0) {
          throw;
        }
      }
      requests.append(added);
    }
  }

  // A future of the running event loop, and the request that it gets the answer of. None if the loop does not watch
  // yet. The loop is not held up: `limited` refuses what has no room.
  py::object submit_async(const py::object& output_names, const py::object& input_feed, bool limited,
                          const Call& call) {
    auto [loop, answers] = running_loop();
    if (!answers) {
      return py::none();
    }
    const auto request = make_request(output_names, input_feed, call);
    request->endable = true;
    const py::object future = new_future(loop);
    request->set_future(std::move(answers), future);
    if (!submit_now(request, limited)) {
      throw without_gil([&] { return pool_->reject(); });
    }
    return py::make_tuple(future, to_capsule(request));
  }

  void warm_up(const py::list& feeds, int runs, const std::shared_ptr<Timeline>& timeline) {
    const auto first_one = session();
    if (!first_one) {
      throw Error(ErrorKind::closed, "the pool has no session");
    }
    const WarmUp first =
        first_runs(feeds, runs, timeline, [&](const py::object& feed) { return make_request(py::none(), feed, {}); });
    const ReleaseGil nogil;
    ortmulti::warm_up(pool_->runners(), first);
  }

  bool cancel_async(const AsyncRequest& request) {
    auto held = request.lock();
    if (!held) {
      return false;
    }
    held->forget_future();
    return without_gil([&] {
      const bool was_there = pool_->cancel(held);
      held.reset();
      return was_there;
    });
  }

 private:
  void note_waited(std::chrono::nanoseconds waited) {
    if (waited >= longest_in_loop && !warned_of_loop_) {
      const auto warn = py::module_::import("ortmulti.pool.blocked_loop").attr("warn_if_blocked");
      warned_of_loop_ = warn(waited / std::chrono::milliseconds(1)).cast<bool>();
    }
  }

  void put_to_sleep(const Device& device, const std::shared_ptr<DeviceSleep>& sleeper, bool auto_wake,
                    std::optional<double> timeout) {
    sleeper->auto_wake = auto_wake;
    try {
      if (!wait_until([&](auto until) { return pool_->sleep(device, sleeper, until); }, timeout)) {
        throw Error(ErrorKind::deadline,
                    to_string(device) +
                        " did not fall asleep within the timeout: a wake, or runs of the pool or of "
                        "Pool.sessions, are still under way there");
      }
    } catch (...) {
      const ReleaseGil nogil;
      pool_->stay_awake(device, sleeper);
      throw;
    }
  }

  std::shared_ptr<PoolRequest> make_request(const py::object& output_names, const py::object& input_feed,
                                            const Call& call) {
    auto request =
        std::make_shared<PoolRequest>(session(), output_names, input_feed, call.run_options, batching_.padding);
    call.apply_to(*request);
    return request;
  }

  // Whether there was room.
  bool submit_now(const std::shared_ptr<PoolRequest>& request, bool limited) {
    const ReleaseGil nogil;
    return pool_->submit(request, limited ? std::optional(Request::Clock::now()) : std::nullopt);
  }

  // Each feed is run so often, as a request that `make` makes with the GIL.
  static WarmUp first_runs(const py::list& feeds, int runs, const std::shared_ptr<Timeline>& timeline,
                           const auto& make) {
    if (feeds.empty()) {
      return {};
    }
    const auto make_all = [&feeds, make] {
      const AcquireGil gil;
      Requests requests;
      for (const py::handle feed : feeds) {
        requests.push_back(make(py::reinterpret_borrow<py::object>(feed)));
      }
      return requests;
    };
    return {make_all, runs, timeline};
  }

  void wait_for(const std::shared_ptr<PoolRequest>& request) {
    try {
      wait_until([&](auto until) { return request->arrival()->wait(until); });
    } catch (const py::error_already_set&) {
      const ReleaseGil nogil;
      pool_->cancel(request);
      throw;
    }
  }

  std::shared_ptr<Pool> pool_;
  Batching batching_;
  bool warned_of_loop_ = false;  // with the GIL
  std::atomic<std::shared_ptr<Session>> session_;
};

}  // namespace ortmulti::bindings
