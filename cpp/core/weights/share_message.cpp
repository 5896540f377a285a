#include "core/weights/share_message.hpp"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "core/base/error.hpp"
#include "core/base/non_copyable.hpp"
#include "core/base/text.hpp"
#include "core/weights/share.hpp"

namespace ortmulti {
namespace {

constexpr std::string_view format = "ortmulti weights 1";

template <std::size_t Size>
void put(std::array<char, Size>& field, std::string_view text) {
  const std::size_t length = std::min(Size - 1, text.size());
  std::copy_n(text.begin(), length, field.begin());
}

template <std::size_t Size>
std::string text_of(const std::array<char, Size>& field) {
  return {field.data(), strnlen(field.data(), Size)};
}

sockaddr_un address_of(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path)) {
    throw Error(ErrorKind::fail,
                in_quotes(path) + " is too long for a socket: set ORTMULTI_SHARE_DIR to a shorter path");
  }
  std::ranges::copy(path, std::begin(address.sun_path));
  return address;
}

const sockaddr* general(const sockaddr_un& address) { return reinterpret_cast<const sockaddr*>(&address); }

bool is_of_this_user(int connected) {
  ucred peer{};
  socklen_t size = sizeof(peer);
  return getsockopt(connected, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && peer.uid == geteuid();
}

// A message and a descriptor, as the kernel takes them and fills them.
struct Envelope : NonCopyable {
  Envelope() {
    whole.msg_iov = &part;
    whole.msg_iovlen = 1;
    whole.msg_control = control.data();
    whole.msg_controllen = control.size();
  }

  Message message;
  alignas(cmsghdr) std::array<unsigned char, CMSG_SPACE(sizeof(int))> control{};
  iovec part{&message, sizeof(message)};
  msghdr whole{};
};

}  // namespace

Message message_of(const std::string& key, const Offered& weights) {
  Message message;
  put(message.format, format);
  put(message.key, key);
  put(message.device, weights.device);
  put(message.model, weights.model);
  message.bytes = weights.bytes;
  message.process = getpid();
  return message;
}

int new_socket() { return socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0); }

Descriptor listen_at(const std::string& path) {
  // Under its name it is there once it listens: one that refuses is taken for that of a dead process.
  const std::string name = path.substr(0, path.size() - offer_socket_end.size());
  const sockaddr_un address = address_of(name);
  static_cast<void>(address_of(path));
  const int made = new_socket();
  if (made < 0) {
    throw_system_error("cannot make a socket");
  }
  Descriptor listening(made);
  if (bind(listening.get(), general(address), sizeof(address)) != 0) {
    throw_system_error("cannot make the socket " + in_quotes(name));
  }
  if (listen(listening.get(), SOMAXCONN) != 0 || rename(name.c_str(), path.c_str()) != 0) {
    const int code = errno;
    unlink(name.c_str());
    errno = code;
    throw_system_error("cannot listen at " + in_quotes(path));
  }
  return listening;
}

Connection try_connect(const Descriptor& socket, const std::string& path) {
  const sockaddr_un address = address_of(path);
  if (connect(socket.get(), general(address), sizeof(address)) == 0) {
    return Connection::made;
  }
  const int code = errno;
  if (code == ECONNREFUSED) {
    unlink(path.c_str());
  }
  return code == EAGAIN ? Connection::later : Connection::none;
}

void send_to(int connected, const Message& message, int memory) {
  if (!is_of_this_user(connected)) {
    return;
  }
  Envelope envelope;
  envelope.message = message;
  cmsghdr* const rights = CMSG_FIRSTHDR(&envelope.whole);
  rights->cmsg_level = SOL_SOCKET;
  rights->cmsg_type = SCM_RIGHTS;
  rights->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(rights), &memory, sizeof(int));
  static_cast<void>(sendmsg(connected, &envelope.whole, MSG_NOSIGNAL | MSG_DONTWAIT));
}

std::optional<Offered> receive_from(int connected, const std::string& key) {
  if (!is_of_this_user(connected)) {
    return std::nullopt;
  }
  Envelope envelope;
  const Message& message = envelope.message;
  const auto size = recvmsg(connected, &envelope.whole, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
  const cmsghdr* const rights = size < 0 ? nullptr : CMSG_FIRSTHDR(&envelope.whole);
  if (rights == nullptr || rights->cmsg_level != SOL_SOCKET || rights->cmsg_type != SCM_RIGHTS) {
    return std::nullopt;
  }
  std::vector<Descriptor> received;  // all of them, to be closed
  for (std::size_t at = 0; CMSG_LEN(at + sizeof(int)) <= rights->cmsg_len; at += sizeof(int)) {
    int one = -1;
    std::memcpy(&one, CMSG_DATA(rights) + at, sizeof(int));
    received.emplace_back(one);
  }
  if (received.size() != 1 || size != sizeof(message) || (envelope.whole.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0 ||
      text_of(message.format) != format || (!key.empty() && text_of(message.key) != key)) {
    return std::nullopt;
  }
  return Offered{text_of(message.model), text_of(message.device), message.bytes, message.process,
                 std::move(received.front())};
}

}  // namespace ortmulti
