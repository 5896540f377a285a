#include "core/base/descriptor.hpp"

#include <unistd.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <string>

#include "core/base/error.hpp"
#include "core/base/fork.hpp"

namespace ortmulti {
namespace {

constexpr std::size_t most = 4096;
constexpr int free_place = 0;
constexpr int of_parent = -1;  // its place is not used again: the parent's object may be freed in the child

// Each place has the number of an open descriptor, plus one. A forked child closes the descriptors without a lock,
// which another thread of the parent may have held.
std::array<std::atomic<int>, most> places{};

void close_in_child() {
  for (auto& place : places) {
    if (const int taken = place.load(); taken > free_place) {
      place.store(of_parent);
      close(taken - 1);
    }
  }
}

}  // namespace

Descriptor::Descriptor(int descriptor) {
  static const bool watched = (on_fork_in_child(close_in_child), true);
  static_cast<void>(watched);
  for (std::size_t i = 0; i < most; ++i) {
    int expected = free_place;
    if (places[i].compare_exchange_strong(expected, descriptor + 1)) {
      place_ = static_cast<int>(i);
      return;
    }
  }
  close(descriptor);
  throw Error(ErrorKind::fail, "more than " + std::to_string(most) + " weights and sockets are shared");
}

Descriptor::~Descriptor() {
  if (place_ >= 0) {
    auto& place = places[static_cast<std::size_t>(place_)];
    if (const int taken = place.load(); taken > free_place) {
      place.store(free_place);
      close(taken - 1);
    }
  }
}

int Descriptor::get() const noexcept {
  const int taken = place_ < 0 ? free_place : places[static_cast<std::size_t>(place_)].load();
  return taken > free_place ? taken - 1 : -1;
}

}  // namespace ortmulti
