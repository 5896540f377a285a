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

constexpr std::string_view offer_socket_end = ".sock";  ///< Of the names of sockets that are listened at.

struct Message {
  std::array<char, 24> format{};
  std::array<char, 40> key{};
  std::array<char, 64> device{};
  std::array<char, 512> model{};
  std::uint64_t bytes = 0;
  std::int64_t process = 0;
};

/// The answer to whoever connects. The memory travels beside it.
Message message_of(const std::string& key, const Offered& weights);

/// A descriptor; -1 and errno where there is none.
int new_socket();
/// Listens at `path`, where nothing has been. Throws Error with ErrorKind::fail.
Descriptor listen_at(const std::string& path);

enum class Connection { made, later, none };
/// Later: more ask at once than a socket keeps. Removes the socket of a process that has ended: nobody uses a name
/// twice.
Connection try_connect(const Descriptor& socket, const std::string& path);

/// Answers one who has connected, if it is of this user. Who does not get it loads by itself.
void send_to(int connected, const Message& message, int memory);
/// None for anything but one message of this format, with one descriptor, from this user. `key`: that it must have;
/// empty: any.
std::optional<Offered> receive_from(int connected, const std::string& key);

}  // namespace ortmulti
