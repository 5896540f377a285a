#include "core/weights/share.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <random>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>

#include "core/base/error.hpp"
#include "core/base/fork.hpp"
#include "core/base/text.hpp"

namespace ortmulti {
namespace {

constexpr int answer_within = 2000;  // milliseconds: a process that is stopped does not answer
constexpr std::string_view socket_end = ".sock";
constexpr std::string_view format = "ortmulti weights 1";

struct Message {
  std::array<char, 24> format{};
  std::array<char, 40> key{};
  std::array<char, 64> device{};
  std::array<char, 512> model{};
  std::uint64_t bytes = 0;
  std::int64_t process = 0;
};

template <std::size_t Size>
void put(std::array<char, Size>& field, std::string_view text) {
  const std::size_t length = std::min(Size - 1, text.size());
  std::copy_n(text.begin(), length, field.begin());
}

template <std::size_t Size>
std::string text_of(const std::array<char, Size>& field) {
  return {field.data(), strnlen(field.data(), Size)};
}

[[noreturn]] void fail(const std::string& what) {
  const int code = errno;
  throw Error(ErrorKind::fail, what + ": " + std::generic_category().message(code));
}

sockaddr_un address_of(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path)) {
    throw Error(ErrorKind::fail, quoted(path) + " is too long for a socket: set ORTMULTI_SHARE_DIR to a shorter path");
  }
  std::copy(path.begin(), path.end(), std::begin(address.sun_path));
  return address;
}

const sockaddr* general(const sockaddr_un& address) { return reinterpret_cast<const sockaddr*>(&address); }

Descriptor new_socket() {
  const int made = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (made < 0) {
    fail("cannot make a socket");
  }
  return Descriptor(made);
}

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

void send_to(int connected, const Message& message, int memory) {
  Envelope envelope;
  envelope.message = message;
  cmsghdr* const rights = CMSG_FIRSTHDR(&envelope.whole);
  rights->cmsg_level = SOL_SOCKET;
  rights->cmsg_type = SCM_RIGHTS;
  rights->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(rights), &memory, sizeof(int));
  // Who does not get it loads by itself.
  static_cast<void>(sendmsg(connected, &envelope.whole, MSG_NOSIGNAL | MSG_DONTWAIT));
}

// None for anything but one message of this format, with one descriptor, from this user, in time.
std::optional<Offered> receive_from(int connected, const std::string& key) {
  pollfd waiting{connected, POLLIN, 0};
  if (!is_of_this_user(connected) || poll(&waiting, 1, answer_within) != 1) {
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

std::string folder_path() {
  if (const char* given = std::getenv("ORTMULTI_SHARE_DIR"); given != nullptr && *given != '\0') {
    return given;
  }
  if (const char* runtime = std::getenv("XDG_RUNTIME_DIR"); runtime != nullptr && *runtime != '\0') {
    return std::string(runtime) + "/ortmulti";
  }
  return "/tmp/ortmulti-" + std::to_string(geteuid());
}

std::optional<Offered> ask(const std::string& path, const std::string& key) {
  struct stat status{};
  if (lstat(path.c_str(), &status) != 0 || !S_ISSOCK(status.st_mode)) {
    return std::nullopt;
  }
  const Descriptor connected = new_socket();
  const sockaddr_un address = address_of(path);
  for (int tried = 0; connect(connected.get(), general(address), sizeof(address)) != 0; ++tried) {
    const int code = errno;
    if (code == ECONNREFUSED) {
      unlink(path.c_str());  // of a process that has ended; nobody uses a name twice
    }
    if (code != EAGAIN || tried == answer_within) {  // that: more ask at once than a socket keeps
      return std::nullopt;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return receive_from(connected.get(), key);
}

// The sockets of a key, or of all.
std::vector<std::string> sockets_of(const std::string& key) {
  const std::string folder = share_folder();
  std::vector<std::string> paths;
  DIR* const opened = opendir(folder.c_str());
  if (opened == nullptr) {
    fail("cannot read " + quoted(folder));
  }
  while (const dirent* const entry = readdir(opened)) {
    const std::string_view name = entry->d_name;
    if (name.size() > socket_end.size() && name.substr(name.size() - socket_end.size()) == socket_end &&
        name.substr(0, key.size()) == key) {
      paths.push_back(folder + "/" + std::string(name));
    }
  }
  closedir(opened);
  return paths;
}

// Answers whoever connects to one of the sockets.
class Answerer {
 public:
  std::uint64_t add(Descriptor listening, const Message& message, Descriptor memory) {
    const std::lock_guard lock(mutex_);
    if (!woken_) {
      const int made = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
      if (made < 0) {
        fail("cannot make an eventfd");
      }
      woken_ = Descriptor(made);
    }
    if (!running_) {
      start();
    }
    offers_.push_back({++last_, std::move(listening), message, std::move(memory)});
    wake();
    return last_;
  }

  void remove(std::uint64_t id) {
    const std::lock_guard lock(mutex_);
    offers_.erase(std::remove_if(offers_.begin(), offers_.end(), [id](const Offer& offer) { return offer.id == id; }),
                  offers_.end());
    wake();
  }

 private:
  struct Offer {
    std::uint64_t id;
    Descriptor listening;
    Message message;
    Descriptor memory;
  };

  void start() {
    sigset_t all;
    sigset_t before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    try {
      std::thread([this] { answer(); }).detach();
      running_ = true;
    } catch (const std::system_error& error) {
      pthread_sigmask(SIG_SETMASK, &before, nullptr);
      throw Error(ErrorKind::fail, std::string("cannot start a thread that offers weights: ") + error.what());
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }

  void wake() const {
    const std::uint64_t one = 1;
    static_cast<void>(!write(woken_.get(), &one, sizeof(one)));
  }

  // The process's exit ends it. Offers are looked at with the lock alone: they are closed as soon as they are removed.
  [[noreturn]] void answer() {
    pthread_setname_np(pthread_self(), "ortmulti offers");
    int wait = -1;
    for (;;) {
      std::vector<pollfd> waiting;
      std::vector<std::uint64_t> ids;
      {
        const std::lock_guard lock(mutex_);
        waiting.push_back({woken_.get(), POLLIN, 0});
        for (const Offer& offer : offers_) {
          // Without descriptors to accept with, they would be ready again and again.
          waiting.push_back({wait < 0 ? offer.listening.get() : -1, POLLIN, 0});
          ids.push_back(offer.id);
        }
      }
      static_cast<void>(poll(waiting.data(), waiting.size(), wait));
      wait = -1;
      std::uint64_t count = 0;
      static_cast<void>(!read(waiting.front().fd, &count, sizeof(count)));
      const std::lock_guard lock(mutex_);
      for (std::size_t i = 0; i < ids.size(); ++i) {
        const auto offer =
            std::find_if(offers_.begin(), offers_.end(), [id = ids[i]](const Offer& one) { return one.id == id; });
        if (waiting[i + 1].revents != 0 && offer != offers_.end() && !answer_all(*offer)) {
          wait = 20;  // milliseconds
        }
      }
    }
  }

  // False where there are no descriptors left.
  static bool answer_all(const Offer& offer) {
    for (;;) {
      const int connected = accept4(offer.listening.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
      if (connected < 0) {
        return errno != EMFILE && errno != ENFILE && errno != ENOMEM && errno != ENOBUFS;
      }
      if (is_of_this_user(connected)) {
        send_to(connected, offer.message, offer.memory.get());
      }
      close(connected);
    }
  }

  std::mutex mutex_;
  std::vector<Offer> offers_;
  std::uint64_t last_ = 0;
  Descriptor woken_;
  bool running_ = false;
};

Answerer& answerer() { return process_singleton<Answerer>(); }

// 64 bits of a text. Two of them with different seeds are the same for two texts of a user by no chance that matters.
std::uint64_t hash(std::string_view text, std::uint64_t seed) {
  for (const char letter : text) {
    seed = (seed ^ static_cast<unsigned char>(letter)) * 0x9E3779B97F4A7C15U;
    seed ^= seed >> 29U;
  }
  return seed * 0xC2B2AE3D27D4EB4FU;
}

std::string hexadecimal(std::uint64_t number) {
  std::array<char, 17> text{};
  std::snprintf(text.data(), text.size(), "%016llx", static_cast<unsigned long long>(number));
  return text.data();
}

}  // namespace

std::string share_folder() {
  const std::string folder = folder_path();
  if (mkdir(folder.c_str(), S_IRWXU) != 0 && errno != EEXIST) {
    fail("cannot make the folder " + quoted(folder));
  }
  struct stat status{};
  if (lstat(folder.c_str(), &status) != 0) {
    fail("cannot look at " + quoted(folder));
  }
  if (!S_ISDIR(status.st_mode) || status.st_uid != geteuid() || (status.st_mode & (S_IRWXG | S_IRWXO)) != 0) {
    throw Error(ErrorKind::fail, quoted(folder) +
                                     " is not a folder of this user's alone (mode 0700): remove it, or set "
                                     "ORTMULTI_SHARE_DIR to another one");
  }
  return folder;
}

std::string share_key(const WeightPlan& plan, const CudaDeviceInfo& device, int driver_version) {
  std::string text(format);
  text += "\n" + device.uuid + "\n" + std::to_string(driver_version) + "\n" + std::to_string(plan.slab_bytes);
  if (plan.base) {
    throw Error(ErrorKind::fail, "the sessions use weights of others beside them");
  }
  std::vector<bool> used(plan.list.sources.size());
  for (const WeightPiece& run : plan.runs) {
    used[run.source] = true;
    for (const std::uint64_t number : {std::uint64_t{run.source}, run.offset, run.slab_offset, run.length}) {
      text += " " + std::to_string(number);
    }
  }
  for (std::size_t i = 0; i < used.size(); ++i) {
    const Source& source = *plan.list.sources[i];
    if (used[i] && !source.open()) {
      throw Error(ErrorKind::fail, quoted(source.name()) + " is no file that other processes know");
    }
    text += used[i] ? "\n" + source.identity() : "\n";
  }
  return hexadecimal(hash(text, 1)) + hexadecimal(hash(text, 2));
}

WeightOffer::WeightOffer(const std::string& key, Offered weights) : generation_(fork_generation()) {
  std::random_device random;
  const std::uint64_t number = (std::uint64_t{random()} << 32U) | random();
  const std::string name = share_folder() + "/" + key + "." + hexadecimal(number);
  path_ = name + std::string(socket_end);
  static_cast<void>(address_of(path_));
  Descriptor listening = new_socket();
  const sockaddr_un address = address_of(name);
  // Under its name it is there once it listens: one that refuses is taken for that of a dead process.
  if (bind(listening.get(), general(address), sizeof(address)) != 0) {
    fail("cannot make the socket " + quoted(name));
  }
  if (listen(listening.get(), SOMAXCONN) != 0 || rename(name.c_str(), path_.c_str()) != 0) {
    const int code = errno;
    unlink(name.c_str());
    errno = code;
    fail("cannot listen at " + quoted(path_));
  }
  Message message;
  put(message.format, format);
  put(message.key, key);
  put(message.device, weights.device);
  put(message.model, weights.model);
  message.bytes = weights.bytes;
  message.process = getpid();
  try {
    id_ = answerer().add(std::move(listening), message, std::move(weights.memory));
  } catch (...) {
    unlink(path_.c_str());
    throw;
  }
}

WeightOffer::~WeightOffer() {
  if (generation_ != fork_generation()) {
    return;
  }
  unlink(path_.c_str());
  answerer().remove(id_);
}

std::optional<Offered> find_offer(const std::string& key) {
  for (const std::string& path : sockets_of(key)) {
    if (auto found = ask(path, key)) {
      return found;
    }
  }
  return std::nullopt;
}

std::vector<Offered> all_offers() {
  std::vector<Offered> all;
  if (access(folder_path().c_str(), F_OK) != 0) {
    return all;
  }
  for (const std::string& path : sockets_of("")) {
    if (auto found = ask(path, "")) {
      found->memory = Descriptor();
      all.push_back(std::move(*found));
    }
  }
  return all;
}

ShareLock::ShareLock(const std::string& key) : path_(share_folder() + "/" + key + ".lock") {}

ShareLock::~ShareLock() {
  if (locked_ && file_) {  // none in a forked child
    unlink(path_.c_str());
  }
}

bool ShareLock::try_lock() {
  for (;;) {
    const int opened = open(path_.c_str(), O_CREAT | O_RDWR | O_CLOEXEC | O_NOFOLLOW, S_IRUSR | S_IWUSR);
    if (opened < 0) {
      fail("cannot open " + quoted(path_));
    }
    file_ = Descriptor(opened);
    if (flock(file_.get(), LOCK_EX | LOCK_NB) != 0) {
      return false;
    }
    struct stat there{};
    struct stat locked{};
    if (stat(path_.c_str(), &there) == 0 && fstat(file_.get(), &locked) == 0 && there.st_ino == locked.st_ino) {
      locked_ = true;
      return true;
    }  // else the one that had it has removed it meanwhile
  }
}

}  // namespace ortmulti
