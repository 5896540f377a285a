#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "core/base/descriptor.hpp"
#include "core/weights/offers.hpp"

// What goes through the sockets of offers.

namespace ortmulti {

constexpr std::string_view offer_socket_end = ".sock";  ///< How names of listening sockets end.

struct Message {
  std::array<char, 24> format{};
  std::array<char, 40> key{};
  std::array<char, 64> device{};
  std::array<char, 512> model{};
  std::uint64_t bytes = 0;
  std::int64_t process = 0;
};

/// Makes the answer to a process that connects. The memory travels beside it.
Message message_of(const std::string& key, const Offered& weights);

/// A new socket's descriptor; -1, with errno, if it fails.
int new_socket();
/// Listens at `path`, which does not exist yet. Throws Error with ErrorKind::fail.
Descriptor listen_at(const std::string& path);

enum class Connection { made, later, none };
/// `later`: more processes ask at once than the socket queues. Removes the socket of a process that has ended, since
/// nobody uses a name twice.
Connection try_connect(const Descriptor& socket, const std::string& path);

/// Answers a process that has connected, if it is this user's. A process without an answer loads by itself.
void send_to(int connected, const Message& message, int memory);
/// Receives one message of this format, with one descriptor, from this user; none for anything else. `key`: the key
/// that it must have; empty: any.
std::optional<Offered> receive_from(int connected, const std::string& key);

}  // namespace ortmulti
