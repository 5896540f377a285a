#pragma once

#include <pybind11/pybind11.h>

#include <atomic>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings/answers.hpp"
#include "bindings/run_request.hpp"
#include "core/pool/pool.hpp"
#include "core/pool/request.hpp"
#include "core/pool/request_timing.hpp"

namespace ortmulti::bindings {

/// The arguments of ortmulti.RequestTiming.
std::tuple<double, double, double, double, std::string, std::size_t> to_python(const RequestTiming& timing);

/// A pool's request of Python values, which it keeps. Whoever frees it need not have the GIL.
class PoolRequest : public Request, NonCopyable {
 public:
  /// `wanted`: names of outputs, or None. Throws Error for what the session does not take.
  /// If there is no session yet, prepare() converts the values later. Needs the GIL, as prepare() does.
  PoolRequest(std::shared_ptr<Session> session, const pybind11::object& wanted, const pybind11::object& feed,
              const pybind11::object& options, std::shared_ptr<const Padding> padding = nullptr);
  ~PoolRequest() override;

  void prepare(const std::shared_ptr<Session>& session) override;

  pybind11::list take_results();

  /// Lets threads wait for it: before it is submitted to the pool.
  void await_arrival(std::weak_ptr<Pool> pool);
  const std::shared_ptr<Arrival>& arrival() const noexcept { return arrival_; }

  /// What became of it, once it has arrived: (outputs, exception, whether it was cancelled, timing). May be called
  /// again.
  pybind11::tuple take();

  /// Whether it was to be answered, and is not any more. No wait for it goes on.
  static bool cancel(const std::shared_ptr<PoolRequest>& request);

  /// Has complete(follower, outputs, exception, cancelled, timing) called by the thread that delivers completions.
  /// Returns false if it is too late for that: then it is to be taken.
  bool follow(const pybind11::object& follower, const pybind11::object& complete);
  /// Makes those calls.
  void deliver() noexcept;

  /// Has an event loop's future answered: before it is submitted.
  void set_future(std::shared_ptr<Receiver> loop, pybind11::object future);
  /// Nobody waits for the future any more.
  void forget_future() { python_.future = pybind11::object(); }
  /// Gives the future its result or exception, unless it has one, and resumes the task that awaits it. To be called by
  /// the thread of the loop. Throws what the task raised beyond it: KeyboardInterrupt or SystemExit.
  void answer_future();

 private:
  struct Python {
    std::shared_ptr<Session> session;  // whose declarations the values were checked against
    std::optional<RunRequest> values;
    pybind11::object wanted;  // until there is a session; as the next
    pybind11::object feed;
    pybind11::object future;                                               // of an event loop
    std::vector<std::pair<pybind11::object, pybind11::object>> followers;  // and what completes each
    pybind11::object taken;                                                // by take()
  };

  /// The arguments of ortmulti.RequestTiming; None where it was not answered.
  pybind11::object timing() const;
  void convert(std::shared_ptr<Session> session, const pybind11::object& wanted, const pybind11::object& feed);

  std::shared_ptr<const Ort::RunOptions> given_options_;
  std::shared_ptr<const Padding> padding_;  // has the name of a mask that it made
  Python python_;
  std::shared_ptr<Arrival> arrival_;
  std::weak_ptr<Pool> pool_;  // that it was submitted to, where threads wait for it
  std::atomic<bool> taking_{false};
  std::atomic<bool> taken_{false};
};

}  // namespace ortmulti::bindings
