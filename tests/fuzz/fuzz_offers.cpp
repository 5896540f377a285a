// Any bytes, with any number of descriptors, as the answer of a process that offers shared weights: nothing is taken
// but one message with one descriptor and the key that was asked for, its texts end within their fields, and no
// descriptor stays open. Bits of the first byte: 0 and 1 the number of descriptors, 2 a key is asked for, 3 two
// messages in turn.
#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>

#include "core/weights/share_message.hpp"
#include "require.hpp"

namespace {

using ortmulti::Message;

int lowest_free() {
  const int made = open("/dev/null", O_RDONLY | O_CLOEXEC);
  close(made);
  return made;
}

void send(int socket, const std::uint8_t* data, std::size_t size, std::size_t descriptors) {
  std::array<int, 3> sent{socket, socket, socket};
  alignas(cmsghdr) std::array<unsigned char, CMSG_SPACE(sizeof sent)> control{};
  iovec part{const_cast<std::uint8_t*>(data), size};
  msghdr whole{};
  whole.msg_iov = &part;
  whole.msg_iovlen = 1;
  if (descriptors > 0) {
    whole.msg_control = control.data();
    whole.msg_controllen = CMSG_SPACE(descriptors * sizeof(int));
    cmsghdr* const rights = CMSG_FIRSTHDR(&whole);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(descriptors * sizeof(int));
    std::memcpy(CMSG_DATA(rights), sent.data(), descriptors * sizeof(int));
  }
  require(sendmsg(socket, &whole, MSG_NOSIGNAL | MSG_DONTWAIT) == static_cast<ssize_t>(size), "cannot send");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 2) {
    return 0;
  }
  static const std::string asked = ortmulti::message_of("key", {}).key.data();
  const std::size_t descriptors = data[0] & 3U;
  const std::string key = (data[0] & 4U) != 0 ? asked : "";
  const int before = lowest_free();
  std::array<int, 2> ends{};
  require(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends.data()) == 0, "no sockets");
  for (int turns = (data[0] & 8U) != 0 ? 2 : 1; turns > 0; --turns) {
    send(ends[0], data + 1, size - 1, descriptors);
  }
  const std::optional<ortmulti::Offered> offer = ortmulti::receive_from(ends[1], key);
  if (offer) {
    require(size - 1 == sizeof(Message) && descriptors == 1, "another message is taken");
    require(offer->memory.get() >= 0 && fcntl(offer->memory.get(), F_GETFD) == FD_CLOEXEC, "no descriptor");
    Message message;
    std::memcpy(static_cast<void*>(&message), data + 1, sizeof message);
    require(key.empty() || std::string(message.key.data(), key.size() + 1) == key + '\0', "another key is taken");
    require(offer->model.size() <= message.model.size() && offer->device.size() <= message.device.size(), "long texts");
  }
  close(ends[0]);
  close(ends[1]);
  require(lowest_free() == (offer && offer->memory.get() == before ? before + 1 : before), "a descriptor stays open");
  return 0;
}
