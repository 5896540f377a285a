#pragma once

#include <string>
#include <vector>

namespace ortmulti {

/// The text of one of the kernel's small files (at most 1 MB); empty where it cannot be read. Without iostreams,
/// whose locales misbehave where a host links libstdc++ into each library anew.
std::string read_small_file(const std::string& path);

/// The lines of `text`, without their ends.
std::vector<std::string> split_lines(const std::string& text);

/// The words of `text`, as blanks and line ends separate them.
std::vector<std::string> split_words(const std::string& text);

}  // namespace ortmulti
