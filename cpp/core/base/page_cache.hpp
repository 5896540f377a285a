#pragma once

#include <cstdint>

namespace ortmulti {

/// Whether a stretch of an open file is in memory, so that reading it waits for no disk. Each way to find out has file
/// systems and permissions that it does not work with.
enum class Residency { resident, absent, unknown };

/// By reading one byte in each MiB without waiting. Not supported by every file system. The kernel begins to read what
/// is absent, and a fast disk may have it there before the kernel looks again: then it counts as resident.
Residency residency_by_reading(int descriptor, std::uint64_t offset, std::uint64_t length);

/// By asking for each page of a mapping. Answered only to those who own the file or may write it.
Residency residency_by_mapping(int descriptor, std::uint64_t offset, std::uint64_t length);

/// By what works for this file; `unknown` where nothing does. Files that live in memory are always resident.
Residency residency(int descriptor, std::uint64_t offset, std::uint64_t length);

}  // namespace ortmulti
