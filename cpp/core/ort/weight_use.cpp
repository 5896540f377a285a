#include "core/ort/weight_use.hpp"

#include <algorithm>
#include <atomic>
#include <charconv>
#include <map>
#include <mutex>
#include <optional>
#include <string_view>
#include <system_error>

#include "core/base/fork.hpp"
#include "core/ort/library.hpp"

namespace ortmulti {
namespace {

// What ONNX Runtime writes, from 1.21.1 to 1.31.1; a name may contain anything.
constexpr std::string_view used_prefix = "Using user supplied initializer with name (";
constexpr std::string_view used_suffix = ").";
constexpr std::string_view refused_prefix = "Cannot use user supplied initializer with name: (";
constexpr std::string_view refused_suffix = ") because the ORT planned memory location";
// ONNX Runtime logs this warning: a saved model is for this hardware alone. Here it is made for nothing else.
constexpr std::string_view saving_prefix = "Serializing optimized model with Graph Optimization level";
// ONNX Runtime throws this right after. It may be no error to the user, since the next try gives the weight otherwise.
constexpr std::string_view failure_prefix = "Exception during initialization: ";

// Follows the user's logid: these two characters, a digit for the user's severity, a number. ONNX Runtime may add ":"
// and a run's tag. Short, so that names which fit into a std::string without allocation often still do.
constexpr std::string_view mark_begin = "\x1f\x1e";

std::string mark(int severity, std::uint64_t number) {
  return std::string(mark_begin) + std::to_string(severity) + std::to_string(number);
}

struct Mark {
  std::size_t begin = 0;
  std::size_t end = 0;
  int severity = 0;
  std::uint64_t number = 0;
};

std::optional<Mark> find_mark(std::string_view name) {
  Mark found;
  found.begin = name.find(mark_begin);
  const std::size_t number = found.begin + mark_begin.size() + 1;
  if (found.begin == std::string_view::npos || number > name.size()) {
    return std::nullopt;
  }
  found.severity = name[number - 1] - '0';
  const auto [end, error] = std::from_chars(name.data() + number, name.data() + name.size(), found.number);
  found.end = static_cast<std::size_t>(end - name.data());
  const bool whole = found.severity >= 0 && found.severity <= ORT_LOGGING_LEVEL_FATAL && error == std::errc();
  return whole ? std::optional(found) : std::nullopt;
}

// What lies between the prefix and the last suffix.
std::optional<std::string_view> name_in(std::string_view message, std::string_view prefix, std::string_view suffix) {
  if (!message.starts_with(prefix)) {
    return std::nullopt;
  }
  message.remove_prefix(prefix.size());
  const std::size_t end = message.rfind(suffix);
  return end == std::string_view::npos ? std::nullopt : std::optional(message.substr(0, end));
}

struct Watches {
  std::mutex mutex;
  std::map<std::uint64_t, WeightUseWatch*> by_number;
};

Watches& all_watches() { return process_singleton<Watches>(); }

// When the library is loaded: a child that is forked while another thread makes them would wait for that thread for
// ever. NOLINTNEXTLINE(bugprone-throwing-static-initialization,cert-err58-cpp): without memory the process ends there
[[maybe_unused]] const bool made_at_load = (static_cast<void>(all_watches()), true);

std::uint64_t next_number() {
  static std::atomic<std::uint64_t> numbers{0};
  return numbers.fetch_add(1, std::memory_order_relaxed);
}

}  // namespace

int log_severity(const SessionOptions& options) noexcept {
  return options.log_severity_level >= 0 ? options.log_severity_level : default_log_severity();
}

WeightUseWatch::WeightUseWatch(const SessionOptions& options)
    : number_(next_number()),
      severity_(std::min<int>(log_severity(options), ORT_LOGGING_LEVEL_INFO)),
      logid_(options.logid + mark(log_severity(options), number_)) {
  Watches& all = all_watches();
  const std::lock_guard lock(all.mutex);
  all.by_number.emplace(number_, this);
}

WeightUseWatch::~WeightUseWatch() {
  Watches& all = all_watches();
  const std::lock_guard lock(all.mutex);
  all.by_number.erase(number_);
}

void WeightUseWatch::apply(Ort::SessionOptions& options) const {
  options.SetLogSeverityLevel(severity_);
  options.SetLogId(logid_.c_str());
}

WeightUse WeightUseWatch::use() const {
  const std::lock_guard lock(all_watches().mutex);
  WeightUse use;
  use.refused.assign(refused_.begin(), refused_.end());
  // One graph may have taken what another one, with a weight of the same name, did not.
  use.used = static_cast<std::size_t>(
      std::ranges::count_if(used_, [this](const auto& name) { return !refused_.contains(name); }));
  return use;
}

bool pass_on(LogRecord& record) {
  const std::optional<Mark> found = find_mark(record.logger);
  if (!found) {
    return true;
  }
  const auto used = name_in(record.message, used_prefix, used_suffix);
  const auto refused = name_in(record.message, refused_prefix, refused_suffix);
  if (used || refused) {
    Watches& all = all_watches();
    const std::lock_guard lock(all.mutex);
    if (const auto watch = all.by_number.find(found->number); watch != all.by_number.end()) {
      (used ? watch->second->used_ : watch->second->refused_).emplace(used ? *used : *refused);
    }
  }
  // The user did not supply the weight, so that its refusal is no warning to the user.
  const std::string_view message = record.message;
  if ((refused || message.starts_with(saving_prefix) || message.starts_with(failure_prefix)
           ? ORT_LOGGING_LEVEL_INFO
           : record.severity) < found->severity) {
    return false;
  }
  const std::string text = record.logger.substr(found->begin, found->end - found->begin);
  for (std::size_t at = 0; (at = record.message.find(text, at)) != std::string::npos;) {
    record.message.erase(at, text.size());
  }
  // ONNX Runtime puts a colon between a logid and a run's tag where both are there.
  const bool colon = found->begin == 0 && record.logger.compare(found->end, 1, ":") == 0;
  record.logger.erase(found->begin, text.size() + (colon ? 1 : 0));
  return true;
}

}  // namespace ortmulti
