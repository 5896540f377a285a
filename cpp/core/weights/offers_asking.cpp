#include <dirent.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <ctime>
#include <string_view>
#include <utility>

#include "core/base/text.hpp"
#include "core/weights/offers.hpp"
#include "core/weights/share.hpp"
#include "core/weights/share_message.hpp"

namespace ortmulti {
namespace {

constexpr std::chrono::milliseconds answer_within{2000};  // a process that is stopped does not answer
constexpr std::size_t asked_at_once = 16;                 // each takes a descriptor, and its answer another one
constexpr std::time_t made_within = 60;                   // seconds, from a name that is bound to the one that listens
constexpr std::string_view lock_end = ".lock";

std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> names;
  DIR* const opened = opendir(folder.c_str());
  if (opened == nullptr) {
    throw_system_error("cannot read " + in_quotes(folder));
  }
  while (const dirent* const entry = readdir(opened)) {
    names.emplace_back(entry->d_name);
  }
  closedir(opened);
  return names;
}

bool is_socket(const std::string& path) {
  struct stat status{};
  return lstat(path.c_str(), &status) == 0 && S_ISSOCK(status.st_mode);
}

struct Question {
  std::string path;
  std::string key;          // that the answer has; empty: any
  std::size_t subject = 0;  // one answer is enough for each
  Descriptor socket{};      // none: it is over
  bool connected = false;
};

// Asks several processes at once: who is stopped does not hold up the others' answers.
class Asking {
 public:
  explicit Asking(std::size_t subjects) : answers_(subjects) {}

  std::vector<std::optional<Offered>> ask(std::vector<Question> questions) {
    for (auto next = questions.begin(); next != questions.end();) {
      for (; next != questions.end() && asked_.size() < asked_at_once; ++next) {
        if (answers_[next->subject] || !is_socket(next->path)) {
          continue;
        }
        const int made = new_socket();
        if (made < 0 && asked_.empty()) {
          throw_system_error("cannot make a socket");
        }
        if (made < 0) {
          break;  // until there are descriptors again
        }
        next->socket = Descriptor(made);
        asked_.push_back(std::move(*next));
      }
      receive();
    }
    return std::move(answers_);
  }

 private:
  void receive() {
    using std::chrono::steady_clock;
    const auto until = steady_clock::now() + answer_within;
    for (;;) {
      const bool crowded = !connect_all();
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - steady_clock::now()).count();
      if (asked_.empty() || left <= 0) {
        break;
      }
      std::vector<pollfd> waiting(asked_.size());
      std::ranges::transform(asked_, waiting.begin(), [](const Question& one) {
        return pollfd{one.connected ? one.socket.get() : -1, POLLIN, 0};
      });
      static_cast<void>(poll(waiting.data(), waiting.size(), crowded ? 1 : static_cast<int>(left)));
      for (std::size_t i = 0; i < asked_.size(); ++i) {
        if (waiting[i].revents != 0) {
          Question& one = asked_[i];
          if (auto answer = receive_from(one.socket.get(), one.key)) {
            answers_[one.subject] = std::move(answer);
          }
          one.socket = Descriptor();
        }
      }
    }
    asked_.clear();
  }

  // False where some have to be tried again. Drops what is over.
  bool connect_all() {
    bool all = true;
    const auto is_over = [&](Question& one) {
      if (!one.socket || answers_[one.subject]) {
        return true;
      }
      if (!one.connected) {
        const Connection connection = try_connect(one.socket, one.path);
        one.connected = connection == Connection::made;
        all = all && connection != Connection::later;
        return connection == Connection::none;
      }
      return false;
    };
    std::erase_if(asked_, is_over);
    return all;
  }

  std::vector<std::optional<Offered>> answers_;
  std::vector<Question> asked_;
};

}  // namespace

std::vector<std::optional<Offered>> find_offers(const std::vector<std::string>& keys) {
  const std::string folder = share_folder();
  std::vector<Question> questions;
  for (const std::string& name : names_in(folder)) {
    const auto key = std::ranges::find_if(keys, [&](const std::string& one) { return name.starts_with(one); });
    if (key != keys.end() && name.ends_with(offer_socket_end)) {
      questions.push_back({folder + "/" + name, *key, static_cast<std::size_t>(key - keys.begin())});
    }
  }
  return Asking(keys.size()).ask(std::move(questions));
}

std::vector<Offered> all_offers() {
  std::vector<Offered> all;
  if (!share_folder_exists()) {
    return all;
  }
  const std::string folder = share_folder();
  std::vector<Question> questions;
  for (const std::string& name : names_in(folder)) {
    if (name.ends_with(offer_socket_end)) {
      questions.push_back({folder + "/" + name, "", questions.size()});
    }
  }
  const std::size_t count = questions.size();
  for (auto& found : Asking(count).ask(std::move(questions))) {
    if (found) {
      found->memory = Descriptor();
      all.push_back(std::move(*found));
    }
  }
  return all;
}

void remove_abandoned() {
  const std::string folder = share_folder();
  for (const std::string& name : names_in(folder)) {
    const std::string path = folder + "/" + name;
    struct stat status{};
    if (lstat(path.c_str(), &status) != 0) {
      continue;
    }
    const bool old = status.st_mtim.tv_sec + made_within < std::time(nullptr);
    if (S_ISREG(status.st_mode) && old && name.ends_with(lock_end)) {
      static_cast<void>(ShareLock(name.substr(0, name.size() - lock_end.size())).try_lock());  // removes it at its end
    } else if (S_ISSOCK(status.st_mode) && name.ends_with(offer_socket_end)) {
      if (const int made = new_socket(); made >= 0) {
        static_cast<void>(try_connect(Descriptor(made), path));
      }
    } else if (S_ISSOCK(status.st_mode) && old) {
      unlink(path.c_str());  // its process ended before it listened
    }
  }
}

}  // namespace ortmulti
