#pragma once

#include <chrono>
#include <cstddef>
#include <string>

#include "core/policy/numbers.hpp"

namespace ortmulti {

/// Holds the rows of joint runs on a GPU at one number, to which they are padded, where a run of another size takes
/// many times as long: ONNX Runtime keeps one plan of cuDNN for each convolution, and has it made anew for another
/// size. The number is a power of two, or the most that is allowed, and follows the load. Without clock, thread or
/// lock.
class HeldRows {
 public:
  /// What is known of a run that has ended.
  struct Run {
    std::size_t rows = 0;    // of its requests
    std::size_t padded = 0;  // that it had
    bool more = false;       // waited meanwhile
    bool by_graph = false;   // whose sessions have plans of their own
    std::chrono::nanoseconds time{0};
  };

  /// The most rows of the next run. `most`: that were asked for.
  std::size_t choose(std::size_t most) const noexcept;
  /// The number of rows to which a run of so many rows is padded.
  std::size_t padded(std::size_t rows) const noexcept { return rows < held_ && !proving_ ? held_ : rows; }
  /// `most`: rows that were asked for.
  void record(const Run& run, std::size_t most) noexcept;
  /// Holds nothing from now on: larger runs lack memory.
  void give_up() noexcept;
  /// Whether a number is held.
  bool holds() const noexcept { return held_ > 0; }
  /// What was measured, as a text; empty where nothing is held.
  std::string why() const;

 private:
  void look_for_changes(const Run& run, bool changed, std::size_t most) noexcept;
  void try_held(const Run& run, bool changed) noexcept;
  void prove_again(const Run& run, bool changed) noexcept;
  void follow(const Run& run, std::size_t most) noexcept;
  bool is_dear(const Run& run) const noexcept;
  void hold(std::size_t rows, std::size_t most) noexcept;

  std::size_t held_ = 0;         // 0: none
  bool pays_ = false;            // to hold it; else that is being tried
  bool never_ = false;           // it was tried in vain
  bool proving_ = false;         // runs are not padded, to see whether another size still takes long
  std::size_t since_proof_ = 0;  // runs
  std::size_t proof_after_ = *numbers::held_rows_proof_after;
  std::size_t before_ = 0;              // rows of the last run
  std::size_t changes_ = 0;             // that took long, in a row
  std::chrono::nanoseconds change_{0};  // the least that one of them took
  std::chrono::nanoseconds same_{0};    // the least that a run of the size before took; 0: there was none
  // Since the number is held, or was looked at:
  std::size_t runs_ = 0;
  std::size_t full_ = 0;     // of them, while more waited
  std::size_t largest_ = 0;  // rows
};

}  // namespace ortmulti
