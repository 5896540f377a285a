#pragma once

#include <chrono>
#include <cstddef>
#include <optional>
#include <type_traits>

#include "core/base/non_copyable.hpp"

namespace ortmulti {

/// What all Number objects have in common. They live as long as the process.
class AnyNumber : NonCopyable {
 public:
  const char* name() const noexcept { return name_; }
  const char* unit() const noexcept { return unit_; }
  const char* meaning() const noexcept { return meaning_; }
  const char* evidence() const noexcept { return evidence_; }
  double value() const noexcept { return value_; }
  double by_default() const noexcept { return by_default_; }

  /// The first one, in the order of this header; the others follow.
  static const AnyNumber* first() noexcept;
  const AnyNumber* next() const noexcept { return next_; }

  /// Throws Error with ErrorKind::invalid_argument where the variable ORTMULTI_NUMBERS names no number, names one
  /// twice, or gives one no value that it may have.
  static void check_overrides();

 protected:
  /// `whole`: it is a count, of 1 or more.
  AnyNumber(const char* name, double value, bool whole, const char* unit, const char* meaning,
            const char* evidence) noexcept;

 private:
  /// Empty: it may have this value.
  const char* why_not(std::optional<double> value) const noexcept;

  const char* name_;
  const char* unit_;
  const char* meaning_;
  const char* evidence_;
  double by_default_;
  bool whole_;
  double value_;
  const AnyNumber* next_ = nullptr;
};

/// A number that a rule of the core rests on. `Type` is double, a count, or a std::chrono::duration, which says the
/// unit. For measurements, ORTMULTI_NUMBERS="in_flight.min_gain=1.1,idle.min_unused=1" gives a process other values.
template <typename Type>
class Number : public AnyNumber {
 public:
  Number(const char* name, double value, const char* unit, const char* meaning, const char* evidence) noexcept
      : AnyNumber(name, value, std::is_integral_v<Type>, unit, meaning, evidence), converted_(convert(this->value())) {}

  /// A duration in nanoseconds, so that a fraction of its unit counts.
  auto operator*() const noexcept { return converted_; }

 private:
  static auto convert(double value) noexcept {
    if constexpr (std::is_arithmetic_v<Type>) {
      return static_cast<Type>(value);
    } else {
      using Nanoseconds = std::chrono::nanoseconds;
      return std::chrono::duration_cast<Nanoseconds>(std::chrono::duration<double, typename Type::period>(value));
    }
  }

  const decltype(convert(0)) converted_;
};

/// The numbers of the rules for which another value might be better. What averages weigh, and how many entries a table
/// has, stands beside its use. Each names the unit of its value, what it decides, and what it rests on: "judged" where
/// nothing was measured that says another value is worse. docs/inside/numbers.md is made from this by `python -m
/// tools.numbers_page`.
namespace numbers {

using Seconds = Number<std::chrono::seconds>;
using Milliseconds = Number<std::chrono::milliseconds>;
using Microseconds = Number<std::chrono::microseconds>;
using Count = Number<std::size_t>;
using Ratio = Number<double>;

// --- Requests under way on a device (InFlight).

inline const Count in_flight_first{"in_flight.first", 3, "runs", "under way on a GPU at first",
                                   "keeps a GPU busy whose runs take longer than their launches; judged"};
inline const Count in_flight_most{
    "in_flight.most", 12, "runs", "under way on a GPU at most",
    "BERT-base on an H100: no larger number answered more (gpu-feeding-bert-base-1.31.1-h100)"};
inline const Count in_flight_most_on_cpu{
    "in_flight.most_on_cpu", 16, "runs", "under way on the CPU at most, or twice the cores if that is more",
    "as good as 16 threads of onnxruntime on 2 busy cores (cpu-runs-busy-1.32.0-2-cores)"};
inline const Ratio in_flight_share_of_cores{"in_flight.share_of_cores", 0.75, "of the cores",
                                            "that runs on GPUs take at most, on all devices", "judged"};
inline const Milliseconds in_flight_measurement{"in_flight.measurement", 200, "ms",
                                                "that a number of runs is measured for, at least", "judged"};
inline const Milliseconds in_flight_measurement_from_one{
    "in_flight.measurement_from_one", 1000, "ms", "the same, where a GPU's model in a repository begins with one run",
    "texts of 256 clients on an H200: 200 ms gave 1.02 and 1.25 times the rate for the same two numbers"};
inline const Count in_flight_min_answers{"in_flight.min_answers", 4, "answers",
                                         "of each run under way in a measurement, at least", "judged"};
inline const Ratio in_flight_min_gain{"in_flight.min_gain", 1.03, "times the rate", "that a larger number has to reach",
                                      "judged"};
inline const Ratio in_flight_min_gain_of_session{
    "in_flight.min_gain_of_session", 1.1, "times the rate", "that more runs have to reach if they need another session",
    "ResNet-50 of 32 images on an H200: three sessions of 1.1 GB gained nothing"};
inline const Count in_flight_steps_without_gain{"in_flight.steps_without_gain", 2, "steps",
                                                "without a gain that end a choice",
                                                "one run more often gains nothing where two do"};
inline const Ratio in_flight_other_load{"in_flight.other_load", 4, "requests",
                                        "more, and twice as many, that count as another load", "judged"};
inline const Seconds in_flight_first_choice_lasts{
    "in_flight.first_choice_lasts", 5, "s", "until a number is chosen again; doubled after each choice", "judged"};
inline const Seconds in_flight_session_for_nothing_lasts{
    "in_flight.session_for_nothing_lasts", 30, "s",
    "at least, until a second session that gained nothing is made again",
    "ResNet-50 on 2 cores: 5 s cost 12% of the rate"};
inline const Seconds in_flight_longest_choice_lasts{"in_flight.longest_choice_lasts", 300, "s",
                                                    "at most until a number is chosen again", "judged"};

inline const Count in_flight_few_in_a_row{
    "in_flight.few_in_a_row", 8, "runs", "in a row on the CPU with few requests, of which the last has all cores again",
    "an LSTM of 0.3 ms, 2 clients on 2 cores: p99 0.4 ms, with 1 run 4.4"};

inline const Milliseconds in_flight_few_for{"in_flight.few_for", 200, "ms",
                                            "after which the next such run has all cores in any case", "judged"};

// --- Joint runs (BatchWait, RowsPerRun, RunCost, Joining).

inline const Ratio batch_wait_share{"batch_wait.share", 0.1, "of a run's time",
                                    "that a free session waits for those whom it has answered, at most", "judged"};
inline const Microseconds batch_wait_shortest{"batch_wait.shortest", 50, "us", "below which nobody waits",
                                              "a thread takes as long to wake up"};
inline const Count batch_wait_longest_pause{"batch_wait.longest_pause", 63, "runs",
                                            "between two waits at most, while waits bring too few", "judged"};
inline const Count batch_wait_whole_delays{
    "batch_wait.whole_delays", 8, "delays",
    "in a row that brought nobody but those just answered, after which delays end with these", "judged"};
inline const Ratio batch_wait_share_of_deadline{"batch_wait.share_of_deadline", 0.5, "of the time to a deadline",
                                                "that is left for a joint run, at least", "judged"};
inline const Count batch_wait_runs_between_delays{"batch_wait.runs_between_delays", 256, "runs",
                                                  "of which one waits for the whole delay", "judged"};
inline const Ratio rows_per_run_hardly_more{"rows_per_run.hardly_more", 1.05, "times the least cost of a row",
                                            "with which fewer rows are joined", "judged"};
inline const Microseconds rows_per_run_of_each_run{"rows_per_run.of_each_run", 50, "us",
                                                   "that a run costs beside its own time",
                                                   "a thread takes as long to be handed over to"};
inline const Count rows_per_run_min_runs{"rows_per_run.min_runs", 4, "runs", "of a size until its cost is known",
                                         "judged"};
inline const Count rows_per_run_min_runs_before_trials{"rows_per_run.min_runs_before_trials", 8, "runs",
                                                       "of the best size until half of it is tried", "judged"};
inline const Count rows_per_run_long_ago{"rows_per_run.long_ago", 512, "runs",
                                         "after which what was measured is forgotten", "judged"};
inline const Ratio rows_per_run_weight_of_newest{"rows_per_run.weight_of_newest", 0.25, "of the average",
                                                 "that the newest run is, at least", "judged"};
inline const Milliseconds held_rows_min_change{"held_rows.min_change", 200, "ms",
                                               "that a run of another size takes at least if rows are held",
                                               "ResNet-50 on an H200: 1.6 s instead of 5 ms"};
inline const Ratio held_rows_min_ratio{"held_rows.min_ratio", 4, "times a run of the same size",
                                       "that a run of another one takes at least, too", "padding costs up to twice"};
inline const Count held_rows_min_changes{"held_rows.min_changes", 3, "runs",
                                         "of other sizes in a row that took so long, before a number is held",
                                         "a first run may load kernels"};
inline const Count held_rows_trial{"held_rows.trial", 32, "runs", "of the held size, in which it has to pay",
                                   "the first ones wait for plans of earlier runs"};
inline const Count held_rows_proof_after{"held_rows.proof_after", 256, "runs",
                                         "after which a run of another size shows whether that still takes long",
                                         "BERT-base on an H200: it was a capture beside three runs"};
inline const Count held_rows_later_proofs{"held_rows.later_proofs", 16, "times as many runs",
                                          "pass until the next such run", "judged"};
inline const Count held_rows_more_after{"held_rows.more_after", 64, "runs",
                                        "half of them full while more waited, after which twice the rows are held",
                                        "a fifth of a second with runs of 3 ms"};
inline const Count held_rows_fewer_after{"held_rows.fewer_after", 512, "runs",
                                         "of at most a quarter of the rows, after which fewer are held", "judged"};
inline const Count run_cost_few_tries{"run_cost.few_tries", 2, "runs",
                                      "after which a size is known that costs about as much as expected",
                                      "another may have had shapes new to a GPU"};
inline const Count run_cost_tries{"run_cost.tries", 6, "runs", "after which any size is known", "judged"};
inline const Ratio run_cost_max_ratio{"run_cost.max_ratio", 1.3, "times the cost of smaller runs",
                                      "with which twice as large ones are tried", "judged"};
inline const Ratio run_cost_hope{"run_cost.hope", 0.9, "times the cost of half the size",
                                 "that a size is taken to cost until it is known", "judged"};
inline const Count run_cost_long_ago{"run_cost.long_ago", 2048, "runs", "after which a size is tried again", "judged"};
inline const Count run_cost_seldom{"run_cost.seldom", 64, "runs",
                                   "without one of a size after which less is believed sooner", "judged"};
inline const Ratio joining_max_share{"joining.max_share", 0.005, "of the time of joint runs",
                                     "that comparing them with single ones takes", "judged"};
inline const Count joining_always_audited{"joining.always_audited", 32, "shapes",
                                          "whose first joint runs are compared at once", "judged"};
inline const Seconds joining_always_for{"joining.always_for", 2, "s", "that these comparisons may take in all",
                                        "a new plan of cuDNN may take seconds"};
inline const Count joining_proving_runs{
    "joining.proving_runs", 16, "joint runs",
    "whose requests are all compared if the graph does not show the rows of outputs", "judged"};
inline const Count joining_faulty{"joining.faulty", 4, "faults",
                                  "from which a caller's requests run alone; a failure counts 2, an answer takes 1 off",
                                  "judged"};
inline const Count joining_max_faults{"joining.max_faults", 16, "faults", "that are remembered of a caller", "judged"};

// --- The queue.

inline const Milliseconds queue_longest_uninterrupted{
    "queue.longest_uninterrupted", 20, "ms",
    "of a run above which another thread runs it for the main thread, which then sees signals", "judged"};
inline const Microseconds queue_hand_over{
    "queue.hand_over", 50, "us", "of a run on the CPU below which, with batching, an idle pool's caller runs it",
    "a tree of 6 us, 16 clients, 2 cores: at least 52,000 answers a second, with 0 us 31,000"};
inline const Count queue_lower_every{"queue.lower_every", 16, "requests",
                                     "of which one is of a lower priority, while several priorities wait", "judged"};
inline const Count queue_min_runs{"queue.min_runs", 8, "runs", "until it is known how long one takes", "judged"};
inline const Count average_runs{"average.runs", 16, "runs", "of which a recent average is, about", "judged"};

// --- Broken devices (Suspension).

inline const Count suspension_max_failures{"suspension.max_failures", 5, "failures",
                                           "in a row, of requests that succeed elsewhere, that suspend a device",
                                           "judged"};
inline const Milliseconds suspension_first_pause{"suspension.first_pause", 100, "ms",
                                                 "until a suspended device is tried again; the time doubles", "judged"};
inline const Seconds suspension_longest_pause{"suspension.longest_pause", 10, "s",
                                              "at most until a suspended device is tried again", "judged"};

// --- CUDA graphs (GraphDemand, ShapeGraphs).

inline const Count graphs_runs_before_capture{"graphs.runs_before_capture", 20, "runs",
                                              "of a shape until it gets a graph",
                                              "its sessions take as long as a load; judged"};
inline const Ratio graphs_least_share{
    "graphs.least_share", 0.05, "of the session's runs", "that have a shape which gets a graph",
    "BERT-base with 196 lengths on an H200: 638 to 693 answers/s with graphs, 942 to 1,000 without"};
inline const Count graphs_max_shapes{"graphs.max_shapes", 8, "shapes", "of a session with a graph, at most", "judged"};
inline const Count graphs_counted_shapes{"graphs.counted_shapes", 1024, "shapes",
                                         "without a graph whose runs are counted: the last used ones", "judged"};
inline const Count graphs_replaceable_after{
    "graphs.replaceable_after", 400, "runs",
    "of the session without a graph's shape, after which another graph may replace it", "judged"};
inline const Count graphs_max_sessions{"graphs.max_sessions", 4, "sessions", "of one shape",
                                       "ResNet-50 on an H100 answered 12% more with four than with three"};
inline const Count graphs_max_sessions_of_all{
    "graphs.max_sessions_of_all", 12, "sessions", "of all shapes at most",
    "BERT-base with 8 lengths on an H200: 21 had 6.4 GB, 9 to 12 had 5.4 and 1.05 times the rate"};
inline const Count graphs_runners{"graphs.runners", 2, "runners", "of one session",
                                  "one copies while the graph of the other runs"};
inline const Count graphs_handle_bytes{"graphs.handle_bytes", 75497472, "bytes",
                                       "that handles of cuBLAS and cuDNN take for each session",
                                       "measured on an H100 with onnxruntime-gpu 1.31.1"};
inline const Count graphs_max_refusals{"graphs.max_refusals", 8, "shapes",
                                       "in a row that got no graph, after which none is made", "judged"};
inline const Count graphs_recent_waits{"graphs.recent_waits", 32, "runs",
                                       "that a graph is crowded after a wait, at most; each wait adds 2", "judged"};
inline const Count graphs_max_postponed{"graphs.max_postponed", 10, "times",
                                        "that the runs before a graph double at most", "judged"};
inline const Ratio graphs_tolerance{"graphs.tolerance", 0.01, "of the largest value",
                                    "that outputs with fixed shapes may differ by",
                                    "TF32 and half precision round in other places"};
inline const Microseconds launches_shortest_sleep{"launches.shortest_sleep", 100, "us",
                                                  "for which a thread that waits for a graph sleeps", "judged"};
inline const Microseconds launches_min_margin{"launches.min_margin", 50, "us",
                                              "that it wakes up before the expected end, at least", "judged"};

// --- Idle memory.

inline const Count idle_min_unused{"idle.min_unused", 16777216, "bytes", "in an arena that are worth giving back",
                                   "judged"};
inline const Count idle_looks_until_graphs{"idle.looks_until_graphs", 12, "looks",
                                           "without a request after which CUDA graphs go",
                                           "they take longer to come back than memory"};
inline const Count idle_looks_until_threads{
    "idle.looks_until_threads", 12, "looks",
    "without an ordinary run by a thread of a GPU after which another one takes its place",
    "a thread's handles take 72 MiB on an H200; judged"};
inline const Count idle_max_tries{"idle.max_tries", 6, "looks", "for which memory stays due while runs are in the way",
                                  "judged"};

// --- Models of a repository (ResidencyPolicy).

inline const Ratio residency_memory_of_rates{
    "residency.memory_of_rates", 20, "s", "whose requests say how many will come",
    "shorter forgets models of each minute, longer keeps those whose burst is over"};
inline const Ratio residency_horizon{"residency.horizon", 1, "s", "within which a request makes a sleep cost something",
                                     "with much more all models seem equally expensive, with much less all seem free"};
inline const Ratio residency_unused_after{"residency.unused_after", 300, "s",
                                          "without a request after which nobody is taken to use a model", "judged"};
inline const Ratio residency_weight_of_newest_wake{"residency.weight_of_newest_wake", 0.25, "of the average",
                                                   "that the newest wake is", "judged"};
inline const Ratio residency_first_patience{
    "residency.first_patience", 1, "s", "that runs may hold up a sleep before the model stays awake; doubled each time",
    "judged"};
inline const Ratio residency_awake_between_tries{"residency.awake_between_tries", 1, "s",
                                                 "between two tries to have a model sleep",
                                                 "requests that came meanwhile are answered"};
inline const Count residency_most_refusals{"residency.most_refusals", 3, "refusals",
                                           "in a row, after which a model is asked more seldom", "judged"};
inline const Ratio residency_asked_again{"residency.asked_again", 1, "s",
                                         "until a model that refused to sleep is asked again", "judged"};
inline const Ratio residency_asked_again_late{"residency.asked_again_late", 10, "s", "the same after most_refusals",
                                              "judged"};
inline const Count residency_cudnn_bytes{"residency.cudnn_bytes", 80000000, "bytes",
                                         "that cuDNN takes for each session that convolves, outside of the arena",
                                         "measured on an H200 with cuDNN 9.19"};

}  // namespace numbers
}  // namespace ortmulti
