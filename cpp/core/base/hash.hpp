#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

namespace ortmulti {

/// 64 bits that differ where bytes do: always for one changed word, by chance of 2^-64 otherwise. Against damage, not
/// against intent.
std::uint64_t checksum(const void* data, std::size_t size) noexcept;

/// The same of a file's content, read by a few threads. Throws Error: no_such_file, or fail for what cannot be read, or
/// soon after `*stop` was set.
std::uint64_t file_checksum(const std::string& path, const std::atomic<bool>* stop = nullptr);

}  // namespace ortmulti
