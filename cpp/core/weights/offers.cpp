#include "core/weights/offers.hpp"

#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <csignal>
#include <cstdint>
#include <mutex>
#include <random>
#include <system_error>
#include <thread>
#include <utility>

#include "core/base/error.hpp"
#include "core/base/fork.hpp"
#include "core/weights/share.hpp"
#include "core/weights/share_message.hpp"

namespace ortmulti {
namespace {

// Answers processes that connect to one of the sockets.
class Answerer {
 public:
  std::uint64_t add(Descriptor listening, const Message& message, Descriptor memory) {
    const auto lock = enter();
    if (!woken_) {
      const int made = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
      if (made < 0) {
        throw_system_error("cannot make an eventfd");
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
    const auto lock = enter();
    std::erase_if(offers_, [id](const Offer& offer) { return offer.id == id; });
    wake();
  }

 private:
  struct Offer {
    std::uint64_t id;
    Descriptor listening;
    Message message;
    Descriptor memory;
  };

  // The lock. Who waits for it goes before further connections, however many come.
  std::unique_lock<std::mutex> enter() {
    ++entering_;
    std::unique_lock lock(mutex_);
    --entering_;
    entered_.notify_one();
    return lock;
  }

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
      std::unique_lock lock(mutex_);
      for (std::size_t i = 0; i < ids.size(); ++i) {
        const auto offer = std::ranges::find(offers_, ids[i], &Offer::id);
        if (waiting[i + 1].revents != 0 && offer != offers_.end() && !answer_all(*offer)) {
          wait = 20;  // milliseconds
        }
      }
      entered_.wait(lock, [this] { return entering_ == 0; });
    }
  }

  // False where there are no descriptors left.
  bool answer_all(const Offer& offer) const {
    while (entering_ == 0) {
      const int connected = accept4(offer.listening.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
      if (connected < 0) {
        return errno != EMFILE && errno != ENFILE && errno != ENOMEM && errno != ENOBUFS;
      }
      send_to(connected, offer.message, offer.memory.get());
      close(connected);
    }
    return true;
  }

  std::mutex mutex_;
  std::condition_variable entered_;
  std::atomic<int> entering_{0};
  std::vector<Offer> offers_;
  std::uint64_t last_ = 0;
  Descriptor woken_;
  bool running_ = false;
};

Answerer& answerer() { return process_singleton<Answerer>(); }

}  // namespace

WeightOffer::WeightOffer(const std::string& key, Offered weights) : generation_(fork_generation()) {
  std::random_device random;
  const std::uint64_t number = (std::uint64_t{random()} << 32U) | random();
  path_ = share_folder() + "/" + key + "." + hexadecimal(number) + std::string(offer_socket_end);
  Descriptor listening = listen_at(path_);
  try {
    id_ = answerer().add(std::move(listening), message_of(key, weights), std::move(weights.memory));
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

}  // namespace ortmulti
