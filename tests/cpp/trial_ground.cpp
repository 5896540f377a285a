#include "trial_ground.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/policy/numbers.hpp"

namespace ortmulti::tests {
namespace {

constexpr auto nobody = std::numeric_limits<std::size_t>::max();
constexpr double round_trip = 20e-6;  // of an answer to its client and of the next request

std::size_t most_in_flight(const TrialModel& model) {
  return model.on_cpu
             ? std::max(*numbers::in_flight_most_on_cpu, 2 * model.cores)
             : std::min(*numbers::in_flight_most, static_cast<std::size_t>(static_cast<double>(model.cores) *
                                                                           *numbers::in_flight_share_of_cores));
}

}  // namespace

Trial::Trial(const TrialLoad& load, const TrialSettings& settings)
    : load_(load),
      settings_(settings),
      in_flight_(load.model.on_cpu ? 1 : *numbers::in_flight_first, load.model.on_cpu ? load.model.cores : 0),
      workers_(std::max(settings.in_flight.value_or(0), most_in_flight(load.model))) {}

void Trial::at(double time, std::function<void()> call) { events_.push({time, number_++, std::move(call)}); }

InFlight::Clock::time_point Trial::clock() const {
  return InFlight::Clock::time_point(std::chrono::nanoseconds(std::llround(1e12 + 1e9 * now_)));
}

std::size_t Trial::clients_now() const {
  std::size_t clients = 0;
  for (const auto& [since, count] : load_.clients) {
    clients = now_ >= since ? count : clients;
  }
  return clients;
}

std::size_t Trial::limit() const { return settings_.in_flight.value_or(in_flight_.limit()); }

double Trial::cost(const Run& run) const {
  double size = 0;
  for (const Request& request : run.batch) {
    size += request.size;
  }
  const auto rows = static_cast<double>(run.batch.size());
  return load_.model.run * (size / rows) + load_.model.row * size * (1 + load_.model.slower * (rows - 1));
}

void Trial::begin_client(std::size_t client) {
  clients_.resize(std::max(clients_.size(), client + 1));
  if (clients_[client].open == 0) {
    send(client);
  }
}

void Trial::come_by_chance() {
  at(now_ - std::log(1 - chance()) / load_.rate, [this] {
    submit(nobody);
    come_by_chance();
  });
}

double Trial::chance() {
  random_ = random_ * 6364136223846793005U + 1442695040888963407U;
  return static_cast<double>(random_ >> 33U) / static_cast<double>(1U << 31U);
}

void Trial::send(std::size_t client) {
  if (client >= clients_now()) {
    return;
  }
  Client& sender = clients_[client];
  sender.open = load_.at_once[sender.sent++ % load_.at_once.size()];
  for (std::size_t left = sender.open; left > 0; --left) {
    submit(client);
  }
}

void Trial::submit(std::size_t client) {
  const Request request{client, now_, 1 + load_.spread * (2 * chance() - 1)};
  if (forming_ && forming_->batch.size() < forming_->most) {
    forming_->batch.push_back(request);
    if (forming_->batch.size() >= forming_->enough) {
      start(RunPointer(forming_));
    }
    return;
  }
  waiting_.push_back(request);
  dispatch();
}

void Trial::dispatch() {
  while (!waiting_.empty() && under_way_ < limit() && !forming_) {
    give(*std::ranges::find(workers_, false, &Worker::busy));
  }
}

void Trial::give(Worker& worker) {
  const auto run = std::make_shared<Run>();
  run->worker = &worker;
  worker.busy = true;
  ++under_way_;
  const bool chooses = load_.model.on_cpu && load_.max_rows > 1 && !settings_.rows;
  run->most = chooses ? rows_per_run_.choose(load_.max_rows) : settings_.rows.value_or(load_.max_rows);
  const auto count = static_cast<std::ptrdiff_t>(std::min(waiting_.size(), run->most));
  run->batch.assign(waiting_.begin(), waiting_.begin() + count);
  waiting_.erase(waiting_.begin(), waiting_.begin() + count);
  const double until = run->batch.front().submitted + load_.max_delay;
  run->expected = worker.batch_wait.enough(now_ == worker.freed ? run->batch.size() : 0, run->most);
  run->enough = run->most;
  run->others = under_way_ - 1;
  if (settings_.waits_for_clients) {
    const bool whole = load_.max_delay > 0 && !worker.batch_wait.ends_delays(run->others);
    run->enough = whole ? run->most : run->expected;
    run->whole_delay = whole && now_ < until && run->batch.size() < run->enough;
  }
  if (run->batch.size() >= run->enough) {
    start(run);
    return;
  }
  forming_ = run;
  at(std::max(now_, until), [this, run] { delayed(run, 0); });
}

void Trial::delayed(const RunPointer& run, std::size_t rows_before) {
  if (forming_ != run) {
    return;
  }
  const std::size_t rows = run->batch.size();
  BatchWait& wait = run->worker->batch_wait;
  const double end = run->worker->freed + std::chrono::duration<double>(wait.longest_wait(limit())).count();
  if (run->whole_delay) {
    wait.record_delay(rows, run->expected, run->others);
    run->whole_delay = false;
    run->enough = run->expected;
  }
  if (!run->there) {
    if (rows >= run->enough || !settings_.waits_for_clients || now_ >= end || !wait.tries()) {
      start(run);
      return;
    }
    run->there = rows;
  } else if (rows == rows_before || now_ >= end) {
    start(run);
    return;
  }
  at(load_.max_delay > 0 ? std::min(end, now_ + load_.max_delay) : end, [this, run, rows] { delayed(run, rows); });
}

void Trial::start(const RunPointer& run) {
  if (forming_ == run) {
    forming_.reset();
  }
  if (run->whole_delay && run->batch.size() > run->expected) {
    run->worker->batch_wait.record_delay(run->batch.size(), run->expected, run->others);
  }
  if (run->there) {
    run->worker->batch_wait.record_wait(run->batch.size() - *run->there, run->enough - *run->there);
  }
  const TrialModel& model = load_.model;
  run->began = now_;
  run->begun = time_.begin(clock());
  if (model.on_cpu) {
    run->side_by_side =
        limit() > 1 &&
        (settings_.side_by_side ? side_by_side_.choose(clock(), limit(), under_way_ + waiting_.size(), model.cores)
                                : settings_.in_flight.has_value() || under_way_ + waiting_.size() > 1);
    advance_cpu();
    const auto cores = static_cast<double>(model.cores);
    run->threads = run->side_by_side ? 1 : cores;
    run->left = cost(*run) * (run->side_by_side ? 1 : model.alone + (1 - model.alone) / cores);
    on_cpu_.push_back(run);
    share_cpu();
    return;
  }
  at(now_ + model.host, [this, run] {
    device_free_ = std::max(device_free_, now_) + cost(*run);
    at(device_free_, [this, run] { end(run); });
  });
}

// Threads share the cores equally.
void Trial::advance_cpu() {
  auto threads = static_cast<double>(load_.model.busy_cores);
  for (const RunPointer& run : on_cpu_) {
    threads += run->threads;
  }
  const double speed = std::min(1.0, static_cast<double>(load_.model.cores) / std::max(threads, 1.0));
  for (const RunPointer& run : on_cpu_) {
    run->left -= (now_ - cpu_since_) * speed;
  }
  cpu_since_ = now_;
}

void Trial::share_cpu() {
  auto threads = static_cast<double>(load_.model.busy_cores);
  for (const RunPointer& run : on_cpu_) {
    threads += run->threads;
  }
  const double speed = std::min(1.0, static_cast<double>(load_.model.cores) / std::max(threads, 1.0));
  if (on_cpu_.empty()) {
    return;
  }
  const auto first = *std::ranges::min_element(on_cpu_, {}, [](const RunPointer& run) { return run->left; });
  at(now_ + std::max(0.0, first->left) / speed, [this, first, number = ++cpu_number_] {
    if (number != cpu_number_) {
      return;  // another run began or ended
    }
    advance_cpu();
    std::erase(on_cpu_, first);
    end(first);
    share_cpu();
  });
}

void Trial::end(const RunPointer& run) {
  const auto part = time_.end(run->begun, clock());
  for (const Request& request : run->batch) {
    if (now_ >= from_) {
      latencies_.push_back(now_ - request.submitted);
    }
    if (request.client != nobody && --clients_[request.client].open == 0) {
      at(now_ + round_trip * (0.5 + 2 * chance()) + load_.think, [this, client = request.client] { send(client); });
    }
  }
  if (load_.max_rows > 1) {
    run->worker->batch_wait.record_run(run->batch.size(), waiting_.size(),
                                       std::chrono::nanoseconds(std::llround(1e9 * (now_ - run->began))));
    if (load_.model.on_cpu && !settings_.rows) {
      rows_per_run_.record(run->batch.size(), part);
    }
  }
  run->worker->freed = now_;
  if (!settings_.in_flight &&
      in_flight_.record(clock(), run->batch.size(), waiting_.size(), most_in_flight(load_.model))) {
    in_flight_.try_more(clock(), "");
  }
  --under_way_;
  if (!waiting_.empty() && under_way_ < limit() && !forming_) {
    give(*run->worker);
  } else {
    run->worker->busy = false;
  }
}

TrialResult Trial::run(double from, double until) {
  from_ = from;
  if (load_.rate > 0) {
    come_by_chance();
  }
  for (const auto& [since, count] : load_.clients) {
    for (std::size_t client = 0; client < count; ++client) {
      at(since, [this, client] { begin_client(client); });
    }
  }
  while (!events_.empty() && events_.top().time < until) {
    const auto call = events_.top().call;
    now_ = events_.top().time;
    events_.pop();
    call();
  }
  TrialResult result;
  result.rate = static_cast<double>(latencies_.size()) / (until - from);
  if (!latencies_.empty()) {
    const auto nth = latencies_.begin() + static_cast<std::ptrdiff_t>(latencies_.size() * 99 / 100);
    std::ranges::nth_element(latencies_, nth);
    result.p99 = *nth;
  }
  result.why = in_flight_.why() + (load_.model.on_cpu ? "; " + rows_per_run_.why() : "");
  return result;
}

}  // namespace ortmulti::tests
