#include "core/base/page_cache.hpp"

#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <vector>

namespace ortmulti {
namespace {

constexpr std::uint64_t probe_step = 1U << 20U;

bool lives_in_memory(int descriptor) {
  struct statfs status{};
  return fstatfs(descriptor, &status) == 0 &&
         (status.f_type == TMPFS_MAGIC || status.f_type == RAMFS_MAGIC || status.f_type == HUGETLBFS_MAGIC);
}

}  // namespace

Residency residency_by_reading(int descriptor, std::uint64_t offset, std::uint64_t length) {
  if (length == 0) {
    return Residency::resident;
  }
  char byte = 0;
  const iovec target{&byte, 1};
  const std::uint64_t last = offset + length - 1;
  for (std::uint64_t at = offset;; at = std::min(at + probe_step, last)) {
    const ssize_t count = preadv2(descriptor, &target, 1, static_cast<off_t>(at), RWF_NOWAIT);
    if (count < 0) {
      return errno == EAGAIN ? Residency::absent : Residency::unknown;
    }
    if (count == 0 || at == last) {  // there is nothing to read beyond the file's end
      return Residency::resident;
    }
  }
}

Residency residency_by_mapping(int descriptor, std::uint64_t offset, std::uint64_t length) {
  struct stat status{};
  // To others than the owner the kernel says that every page is there.
  if (fstat(descriptor, &status) != 0 || !S_ISREG(status.st_mode) || (geteuid() != 0 && geteuid() != status.st_uid)) {
    return Residency::unknown;
  }
  const std::uint64_t end = std::min(offset + length, static_cast<std::uint64_t>(status.st_size));
  const auto page = static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
  const std::uint64_t begin = offset / page * page;
  if (begin >= end) {
    return Residency::resident;
  }
  const std::size_t size = end - begin;
  std::vector<unsigned char> pages((size + page - 1) / page);
  void* mapping = mmap(nullptr, size, PROT_READ, MAP_SHARED, descriptor, static_cast<off_t>(begin));
  if (mapping == MAP_FAILED) {
    return Residency::unknown;
  }
  const bool known = mincore(mapping, size, pages.data()) == 0;
  munmap(mapping, size);
  if (!known) {
    return Residency::unknown;
  }
  const bool all = std::ranges::all_of(pages, [](unsigned char state) { return (state & 1U) != 0; });
  return all ? Residency::resident : Residency::absent;
}

Residency residency(int descriptor, std::uint64_t offset, std::uint64_t length) {
  if (lives_in_memory(descriptor)) {
    return Residency::resident;
  }
  const Residency mapped = residency_by_mapping(descriptor, offset, length);
  return mapped == Residency::unknown ? residency_by_reading(descriptor, offset, length) : mapped;
}

}  // namespace ortmulti
