#include "core/base/file.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <filesystem>
#include <functional>
#include <future>
#include <system_error>

#include "core/base/cpu_affinity.hpp"
#include "core/base/error.hpp"
#include "core/base/hash.hpp"

namespace ortmulti {
namespace {

Error cannot_open(const std::string& path, int code) {
  return Error(ErrorKind::no_such_file, "cannot open '" + path + "': " + std::generic_category().message(code));
}

Error not_regular(const std::string& path) {
  return Error(ErrorKind::no_such_file, "'" + path + "' is not a regular file");
}

// The path without symbolic links and the status of one and the same file, whatever is renamed meanwhile; errno or 0.
int resolve_once(const std::string& path, std::string& real, struct stat& status) {
  // O_PATH opens no device and waits for no FIFO.
  const int descriptor = open(path.c_str(), O_PATH | O_CLOEXEC);
  if (descriptor < 0) {
    return errno;
  }
  int code = fstat(descriptor, &status) == 0 ? 0 : errno;
  std::array<char, PATH_MAX> target{};
  const std::string link = "/proc/self/fd/" + std::to_string(descriptor);
  if (const ssize_t length = readlink(link.c_str(), target.data(), target.size()); length > 0) {
    real.assign(target.data(), static_cast<std::size_t>(length));
  } else {  // there is no /proc
    real = real_path(path);
    code = code == 0 && real.empty() ? ENOENT : code;
  }
  close(descriptor);
  return code;
}

int open_regular(const std::string& path) {
  const int descriptor = open_nonblocking(path, O_RDONLY);
  if (descriptor < 0) {
    throw cannot_open(path, errno);
  }
  struct stat status{};
  if (fstat(descriptor, &status) != 0 || !S_ISREG(status.st_mode)) {
    close(descriptor);
    throw not_regular(path);
  }
  return descriptor;
}

// Blocks are hashed on their own, so that threads can share a file; their sums are chained.
constexpr std::size_t block_bytes = std::size_t{4} << 20U;
// What is read at once; it stays in a core's cache until it is hashed.
constexpr std::size_t piece_bytes = std::size_t{128} << 10U;

}  // namespace

std::pair<std::string, struct stat> stat_regular(const std::string& path) {
  std::string real;
  struct stat status{};
  if (const int code = resolve_once(path, real, status); code != 0) {
    throw cannot_open(path, code);
  }
  if (!S_ISREG(status.st_mode)) {
    throw not_regular(real);
  }
  return {std::move(real), status};
}

InputFile::InputFile(const std::string& path) : path_(path), descriptor_(open_regular(path)) {}

InputFile::~InputFile() { close(descriptor_); }

std::uint64_t InputFile::size() const {
  struct stat status{};
  if (fstat(descriptor_, &status) != 0) {
    fail(errno);
  }
  return static_cast<std::uint64_t>(status.st_size);
}

InputFile::ReadResult InputFile::try_read(void* target, std::size_t size, std::uint64_t offset) const noexcept {
  auto* const to = static_cast<unsigned char*>(target);
  ReadResult result;
  while (result.bytes < size) {
    const ssize_t count =
        pread(descriptor_, to + result.bytes, size - result.bytes, static_cast<off_t>(offset + result.bytes));
    if (count == 0) {
      result.error = ENODATA;
      break;
    }
    if (count > 0) {
      result.bytes += static_cast<std::size_t>(count);
    } else if (errno != EINTR) {
      result.error = errno;
      break;
    }
  }
  return result;
}

void InputFile::fail(int code) const {
  throw Error(ErrorKind::fail,
              "cannot read '" + path_ + "': " +
                  (code == ENODATA ? "it ends before the requested bytes" : std::generic_category().message(code)));
}

OutputFile::OutputFile(const std::string& path)
    : path_(path), descriptor_(open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600)) {
  if (descriptor_ < 0) {
    kept_ = true;  // it is somebody else's
    fail(errno);
  }
}

OutputFile::~OutputFile() {
  if (descriptor_ >= 0) {
    ::close(descriptor_);
  }
  if (!kept_) {
    unlink(path_.c_str());
  }
}

void OutputFile::write(const void* data, std::size_t size) {
  const auto* at = static_cast<const unsigned char*>(data);
  while (size > 0) {
    // Linux writes no more at once.
    const ssize_t count = ::write(descriptor_, at, std::min<std::size_t>(size, 0x7FFFF000));
    if (count >= 0) {
      at += count;
      size -= static_cast<std::size_t>(count);
      size_ += static_cast<std::uint64_t>(count);
    } else if (errno != EINTR) {
      fail(errno);
    }
  }
}

void OutputFile::close() {
  const int descriptor = std::exchange(descriptor_, -1);
  if (::close(descriptor) != 0) {  // some file systems report here what they could not write
    fail(errno);
  }
}

void OutputFile::fail(int code) const {
  throw Error(ErrorKind::fail, "cannot write '" + path_ + "': " + std::generic_category().message(code));
}

int open_nonblocking(const std::string& path, int flags) noexcept {
  constexpr int private_mode = 0600;
  return open(path.c_str(), flags | O_NONBLOCK | O_NOCTTY | O_CLOEXEC, private_mode);
}

int open_nofollow(const std::string& path, int flags) noexcept { return open_nonblocking(path, flags | O_NOFOLLOW); }

std::string folder_of(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  return slash == std::string::npos ? "." : path.substr(0, std::max<std::size_t>(slash, 1));
}

std::string real_path(const std::string& path) {
  std::error_code error;
  return std::filesystem::canonical(path, error).string();
}

std::uint64_t file_checksum(const std::string& path, const std::stop_token& stop) {
  const InputFile file(path);
  const std::uint64_t size = file.size();
  std::vector<std::uint64_t> sums(static_cast<std::size_t>((size + block_bytes - 1) / block_bytes));
  std::atomic<std::size_t> next{0};
  std::atomic<int> problem{0};
  const auto work = [&] {
    std::vector<unsigned char> buffer(piece_bytes);
    for (std::size_t block = next++; block < sums.size() && problem == 0; block = next++) {
      const std::uint64_t begin = std::uint64_t{block} * block_bytes;
      const std::uint64_t end = std::min(begin + block_bytes, size);
      Hash sum;
      for (std::uint64_t at = begin; at < end; at += piece_bytes) {
        const auto length = static_cast<std::size_t>(std::min<std::uint64_t>(piece_bytes, end - at));
        if (const int code = stop.stop_requested() ? ECANCELED : file.try_read(buffer.data(), length, at).error;
            code != 0) {
          problem = code;
          break;
        }
        sum.add(buffer.data(), length);
      }
      sums[block] = sum.sum();
    }
  };
  constexpr std::size_t max_threads = 8;
  const auto cores = static_cast<std::size_t>(usable_cores());
  std::vector<std::future<void>> threads;
  for (std::size_t i = 1; i < std::min({cores, max_threads, sums.size()}); ++i) {
    threads.push_back(std::async(std::launch::async | std::launch::deferred, std::ref(work)));
  }
  work();  // most files have one block, and need no thread
  for (auto& thread : threads) {
    thread.get();
  }
  if (problem != 0) {
    file.fail(problem);
  }
  std::uint64_t state = size;
  for (const std::uint64_t sum : sums) {
    state = mix(state, sum);
  }
  state = mix(state ^ state >> 32U, size);
  return state ^ state >> 29U;
}

std::string read_small_file(const std::string& path) {
  constexpr std::size_t limit = 1'000'000;
  std::string text;
  try {
    const InputFile file(path);
    std::array<char, 4096> block{};
    for (InputFile::ReadResult part{block.size()}; part.bytes == block.size() && text.size() < limit;) {
      part = file.try_read(block.data(), block.size(), text.size());
      text.append(block.data(), part.bytes);
    }
  } catch (const Error&) {  // NOLINT(bugprone-empty-catch): there is no such file
  }
  return text;
}

std::vector<std::string> split_words(const std::string& text, const char* separators) {
  std::vector<std::string> words;
  for (std::size_t begin = text.find_first_not_of(separators); begin != std::string::npos;) {
    const std::size_t end = text.find_first_of(separators, begin);
    words.push_back(text.substr(begin, end == std::string::npos ? end : end - begin));
    begin = text.find_first_not_of(separators, end);
  }
  return words;
}

}  // namespace ortmulti
