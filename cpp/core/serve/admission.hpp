#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <utility>

#include "core/base/non_copyable.hpp"
#include "core/serve/limits.hpp"

namespace ortmulti::serve {

/// Counts what clients take of the process, of both protocols. Any thread may use it. It outlives what it gave.
class Admission : NonCopyable {
 public:
  /// Longer times are taken as this one, which can be added to a time.
  static constexpr Limits::Seconds longest_time{1e8};

  explicit Admission(const Limits& limits);

  const Limits& limits() const noexcept { return limits_; }

  /// Bytes that are counted until they are given back, by a destructor or by resize_down(). One thread at a time uses
  /// it.
  class Bytes {
   public:
    Bytes() = default;
    explicit Bytes(Admission& admission) noexcept : admission_(&admission) {}
    ~Bytes() { resize_down(0); }
    Bytes(Bytes&& other) noexcept
        : admission_(std::exchange(other.admission_, nullptr)), count_(std::exchange(other.count_, 0)) {}
    Bytes& operator=(Bytes&& other) noexcept;
    /// Counts so many in all. False, with nothing changed, where the budget has not so many more. Fewer: no change.
    [[nodiscard]] bool grow_to(std::size_t bytes) noexcept;
    /// Counts so many in all, beyond the budget too: of memory that is there already. Until others have given theirs
    /// back, grow_to() then fails.
    void set(std::size_t bytes) noexcept;
    void resize_down(std::size_t bytes) noexcept;
    /// Counts here what was counted there.
    void take_over(Bytes& other) noexcept { count_ += std::exchange(other.count_, 0); }
    /// Another object for the same admission, which counts nothing yet.
    Bytes another() const noexcept;
    std::size_t count() const noexcept { return count_; }
    /// The budget, of all that is counted.
    std::size_t limit() const noexcept;

   private:
    Admission* admission_ = nullptr;  ///< Null: nothing is counted.
    std::size_t count_ = 0;
  };

  /// A request under way, or a connection, until it is freed. Empty: there is no room for one more.
  using Place = std::shared_ptr<void>;
  Place request() { return take(requests_, limits_.concurrent); }
  Place connection() { return take(connections_, limits_.connections); }

  std::size_t bytes() const noexcept { return bytes_; }
  std::size_t requests() const noexcept { return requests_; }
  std::size_t connections() const noexcept { return connections_; }

 private:
  static Place take(std::atomic<std::size_t>& count, std::size_t most);

  const Limits limits_;
  std::atomic<std::size_t> bytes_ = 0;
  std::atomic<std::size_t> requests_ = 0;
  std::atomic<std::size_t> connections_ = 0;
};

}  // namespace ortmulti::serve
