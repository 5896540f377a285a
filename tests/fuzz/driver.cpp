// Runs a fuzz target without libFuzzer, for compilers that have none: inputs are the seeds, changed at random, without
// regard to what code they reach.
//
//   PROGRAM [-max_total_time=SECONDS] [-seed=NUMBER] [-artifact_prefix=PATH] FOLDER...
//
// An input at which the program ends, by a sanitizer or by itself, is kept as PATHcrash.
#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <random>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);
extern "C" void __sanitizer_set_death_callback(void (*callback)());

namespace {

using Bytes = std::vector<std::uint8_t>;

Bytes current;
std::string artifact = "crash";

void keep_current() {
  if (std::FILE* file = std::fopen(artifact.c_str(), "wb"); file != nullptr) {
    std::fwrite(current.data(), 1, current.size(), file);
    std::fclose(file);
    std::fprintf(stderr, "input kept as %s\n", artifact.c_str());
  }
}

void on_abort(int /*signal*/) {
  keep_current();
  std::_Exit(1);
}

Bytes read(const std::filesystem::path& path) {
  Bytes content;
  if (std::FILE* file = std::fopen(path.c_str(), "rb"); file != nullptr) {
    content.resize(std::filesystem::file_size(path));
    content.resize(std::fread(content.data(), 1, content.size(), file));
    std::fclose(file);
  }
  return content;
}

class Mutator {
 public:
  Mutator(std::vector<Bytes> seeds, std::uint64_t seed) : seeds_(std::move(seeds)), random_(seed) {}

  Bytes next() {
    Bytes input = seeds_[below(seeds_.size())];
    for (std::size_t count = 1 + below(8); count > 0; --count) {
      change(input);
    }
    return input;
  }

 private:
  std::size_t below(std::size_t end) { return end == 0 ? 0 : random_() % end; }

  void change(Bytes& input) {
    const std::size_t at = below(input.size() + 1);
    const std::size_t length = std::min(below(32) + 1, input.size() - at);
    const auto begin = input.begin() + static_cast<std::ptrdiff_t>(at);
    const auto end = begin + static_cast<std::ptrdiff_t>(length);
    switch (below(8)) {
      case 0:  // a bit
        if (length > 0) {
          *begin ^= static_cast<std::uint8_t>(1U << below(8));
        }
        break;
      case 1:  // a byte; often one that numbers begin or end with
        if (length > 0) {
          constexpr std::uint8_t usual[] = {0x00, 0x01, 0x7F, 0x80, 0xFF, 0x0A, 0x12, 0x2A, 0x3A, 0x4A};
          *begin = below(2) == 0 ? usual[below(sizeof usual)] : static_cast<std::uint8_t>(below(256));
        }
        break;
      case 2:  // some bytes less
        input.erase(begin, end);
        break;
      case 3: {  // some bytes twice
        const Bytes again(begin, end);
        input.insert(begin, again.begin(), again.end());
        break;
      }
      case 4: {  // bytes of another seed
        const Bytes& other = seeds_[below(seeds_.size())];
        const std::size_t from = below(other.size());
        const std::size_t count = std::min(below(200), other.size() - from);
        input.insert(begin, other.begin() + static_cast<std::ptrdiff_t>(from),
                     other.begin() + static_cast<std::ptrdiff_t>(from + count));
        break;
      }
      case 5:  // a number of ten bytes
        input.insert(begin, 9, 0xFF);
        break;
      case 6:  // the end cut off, rarely: little is left of it
        if (below(8) == 0) {
          input.erase(begin, input.end());
        }
        break;
      default:  // a number one more or less, as lengths are
        if (length > 0) {
          *begin = static_cast<std::uint8_t>(*begin + (below(2) == 0 ? 1 : 255));
        }
        break;
    }
  }

  std::vector<Bytes> seeds_;
  std::mt19937_64 random_;
};

}  // namespace

int main(int count, char** arguments) {
  double seconds = 10;
  std::uint64_t seed = std::random_device()();
  std::vector<Bytes> seeds = {{}};
  for (int index = 1; index < count; ++index) {
    const std::string argument = arguments[index];
    const std::string value = argument.substr(argument.find('=') + 1);
    if (argument.rfind("-max_total_time=", 0) == 0) {
      seconds = std::stod(value);
    } else if (argument.rfind("-seed=", 0) == 0) {
      seed = std::stoull(value);
    } else if (argument.rfind("-artifact_prefix=", 0) == 0) {
      artifact = value + "crash";
    } else if (argument.rfind('-', 0) != 0) {  // libFuzzer's other options are not ours
      std::vector<std::filesystem::path> paths = {argument};
      if (std::filesystem::is_directory(argument)) {
        paths.clear();
        for (const auto& entry : std::filesystem::directory_iterator(argument)) {
          paths.push_back(entry.path());
        }
        std::sort(paths.begin(), paths.end());
      }
      for (const auto& path : paths) {
        seeds.push_back(read(path));
      }
    }
  }
  std::signal(SIGABRT, on_abort);
  __sanitizer_set_death_callback(keep_current);
  std::fprintf(stderr, "%zu seeds, -seed=%llu\n", seeds.size(), static_cast<unsigned long long>(seed));
  for (const Bytes& input : seeds) {
    current = input;
    LLVMFuzzerTestOneInput(current.data(), current.size());
  }
  Mutator mutator(std::move(seeds), seed);
  std::size_t runs = 0;
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  for (; std::chrono::steady_clock::now() < end; ++runs) {
    current = mutator.next();
    current.shrink_to_fit();  // so that a byte beyond the end is noticed
    LLVMFuzzerTestOneInput(current.data(), current.size());
  }
  std::fprintf(stderr, "Done %zu runs\n", runs);
  return runs > 0 ? 0 : 1;
}
