#pragma once

#include <atomic>
#include <cstdint>
#include <string>

namespace ortmulti {

/// 64 bits that differ where a file's bytes do: always for one changed word, by chance of 2^-64 otherwise. Against
/// damage, not against intent. The file is read by a few threads. Throws Error: no_such_file, or fail for what cannot
/// be read, or soon after `*stop` was set.
std::uint64_t file_checksum(const std::string& path, const std::atomic<bool>* stop = nullptr);

}  // namespace ortmulti
