#include "core/serve/admission.hpp"

#include <algorithm>
#include <limits>

namespace ortmulti::serve {
namespace {

Limits with_times_that_add(Limits limits) {
  for (Limits::Seconds* time : {&limits.receive, &limits.send, &limits.idle, &limits.end}) {
    *time = std::min(*time, Admission::longest_time);
  }
  return limits;
}

}  // namespace

Admission::Admission(const Limits& limits) : limits_(with_times_that_add(limits)) {}

Admission::Bytes& Admission::Bytes::operator=(Bytes&& other) noexcept {
  if (this != &other) {
    resize_down(0);
    admission_ = std::exchange(other.admission_, nullptr);
    count_ = std::exchange(other.count_, 0);
  }
  return *this;
}

bool Admission::Bytes::grow_to(std::size_t bytes) noexcept {
  if (admission_ == nullptr || bytes <= count_) {
    return true;
  }
  const std::size_t most = admission_->limits_.memory;
  std::size_t counted = admission_->bytes_;
  do {
    if (counted > most || bytes - count_ > most - counted) {
      return false;
    }
  } while (!admission_->bytes_.compare_exchange_weak(counted, counted + (bytes - count_)));
  count_ = bytes;
  return true;
}

Admission::Bytes Admission::Bytes::another() const noexcept {
  Bytes other;
  other.admission_ = admission_;
  return other;
}

std::size_t Admission::Bytes::limit() const noexcept {
  return admission_ == nullptr ? std::numeric_limits<std::size_t>::max() : admission_->limits_.memory;
}

void Admission::Bytes::set(std::size_t bytes) noexcept {
  if (admission_ != nullptr && bytes > count_) {
    admission_->bytes_ += bytes - count_;
    count_ = bytes;
  }
  resize_down(bytes);
}

void Admission::Bytes::resize_down(std::size_t bytes) noexcept {
  if (admission_ != nullptr && bytes < count_) {
    admission_->bytes_ -= count_ - bytes;
    count_ = bytes;
  }
}

Admission::Place Admission::take(std::atomic<std::size_t>& count, std::size_t most) {
  std::size_t taken = count;
  do {
    if (taken >= most) {
      return {};
    }
  } while (!count.compare_exchange_weak(taken, taken + 1));
  return {&count, [](std::atomic<std::size_t>* taken_from) { --*taken_from; }};
}

}  // namespace ortmulti::serve
