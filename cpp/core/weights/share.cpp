#include "core/weights/share.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <system_error>

#include "core/base/error.hpp"
#include "core/base/hash.hpp"
#include "core/base/text.hpp"

namespace ortmulti {
namespace {

std::string folder_path() {
  if (const char* given = std::getenv("ORTMULTI_SHARE_DIR"); given != nullptr && *given != '\0') {
    return given;
  }
  if (const char* runtime = std::getenv("XDG_RUNTIME_DIR"); runtime != nullptr && *runtime != '\0') {
    return std::string(runtime) + "/ortmulti";
  }
  return "/tmp/ortmulti-" + std::to_string(geteuid());
}

// Two of them with different seeds are the same for two texts of a user by no chance that matters.
std::uint64_t hash(const std::string& text, std::uint64_t seed) {
  Hash hash(seed);
  hash.add(text.data(), text.size());
  return hash.sum();
}

}  // namespace

std::string hexadecimal(std::uint64_t number) {
  std::array<char, 17> text{};
  std::snprintf(text.data(), text.size(), "%016llx", static_cast<unsigned long long>(number));
  return text.data();
}

void throw_system_error(const std::string& what) {
  const int code = errno;
  throw Error(ErrorKind::fail, what + ": " + std::generic_category().message(code));
}

bool share_folder_exists() { return access(folder_path().c_str(), F_OK) == 0; }

std::string share_folder() {
  const std::string folder = folder_path();
  if (mkdir(folder.c_str(), S_IRWXU) != 0 && errno != EEXIST) {
    throw_system_error("cannot make the folder " + in_quotes(folder));
  }
  struct stat status{};
  if (lstat(folder.c_str(), &status) != 0) {
    throw_system_error("cannot look at " + in_quotes(folder));
  }
  if (!S_ISDIR(status.st_mode) || status.st_uid != geteuid() || (status.st_mode & (S_IRWXG | S_IRWXO)) != 0) {
    throw Error(ErrorKind::fail, in_quotes(folder) +
                                     " is not a folder of this user's alone (mode 0700): remove it, or set "
                                     "ORTMULTI_SHARE_DIR to another one");
  }
  return folder;
}

std::string share_key(const WeightPlan& plan, const CudaDeviceInfo& device, int driver_version) {
  std::string text("ortmulti weights 1");
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
      throw Error(ErrorKind::fail, in_quotes(source.name()) + " is no file that other processes know");
    }
    text += used[i] ? "\n" + source.identity() : "\n";
  }
  for (const std::string& sample : sample_of(plan.list)) {
    text += "\n" + sample;
  }
  return hexadecimal(hash(text, 1)) + hexadecimal(hash(text, 2));
}

ShareLock::ShareLock(const std::string& key) : path_(share_folder() + "/" + key + ".lock") {}

ShareLock::~ShareLock() {
  if (locked_ && is_there()) {
    unlink(path_.c_str());
  }
}

bool ShareLock::is_there() const {
  struct stat there{};
  struct stat opened{};
  // A forked child has no file.
  return file_ && stat(path_.c_str(), &there) == 0 && fstat(file_.get(), &opened) == 0 &&
         there.st_dev == opened.st_dev && there.st_ino == opened.st_ino;
}

bool ShareLock::try_lock() {
  for (;;) {
    const int opened = open(path_.c_str(), O_CREAT | O_RDWR | O_CLOEXEC | O_NOFOLLOW, S_IRUSR | S_IWUSR);
    if (opened < 0) {
      throw_system_error("cannot open " + in_quotes(path_));
    }
    file_ = Descriptor(opened);
    if (flock(file_.get(), LOCK_EX | LOCK_NB) != 0) {
      if (errno != EWOULDBLOCK) {
        throw_system_error("cannot lock " + in_quotes(path_));
      }
      note_renewal();
      return false;
    }
    if (is_there()) {
      locked_ = true;
      renew();
      return true;
    }  // else the one that had it has removed it meanwhile
  }
}

void ShareLock::renew() const noexcept {
  if (locked_) {
    static_cast<void>(futimens(file_.get(), nullptr));
  }
}

void ShareLock::note_renewal() {
  struct stat status{};
  if (fstat(file_.get(), &status) == 0 &&
      (status.st_mtim.tv_sec != renewed_.tv_sec || status.st_mtim.tv_nsec != renewed_.tv_nsec)) {
    renewed_ = status.st_mtim;
    seen_ = std::chrono::steady_clock::now();
  }
}

bool ShareLock::take_away() {
  // One process at a time: the file that it removes is still the one that it has waited for.
  const int opened = open(share_folder().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (opened < 0) {
    throw_system_error("cannot open " + in_quotes(share_folder()));
  }
  const Descriptor folder(opened);
  return flock(folder.get(), LOCK_EX | LOCK_NB) == 0 && is_there() && unlink(path_.c_str()) == 0;
}

}  // namespace ortmulti
