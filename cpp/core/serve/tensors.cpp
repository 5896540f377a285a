#include "core/serve/tensors.hpp"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "core/serve/inputs.hpp"

namespace ortmulti::serve {
namespace {

using Kind = SentValue::Kind;

void choose_outputs(InferRequest& request, const Asked& asked) {
  const ServedModel& model = *request.model;
  if (asked.outputs.empty()) {
    for (const Declared& output : model.outputs) {
      request.wanted.push_back({&output, asked.binary_outputs});
    }
  }
  for (const AskedOutput& output : asked.outputs) {
    const auto found = std::ranges::find(model.outputs, output.name, &Declared::name);
    if (found == model.outputs.end()) {
      refuse("unexpected inference output '" + shortened(output.name, most_name) + "' for model '" + model.name + "'");
    }
    request.wanted.push_back({&*found, output.binary.value_or(asked.binary_outputs)});
  }
  std::vector<bool> seen(model.outputs.size());
  for (const InferRequest::Output& output : request.wanted) {
    const auto at = static_cast<std::size_t>(output.declared - model.outputs.data());
    if (seen[at]) {
      refuse("output '" + shortened(output.declared->name, most_name) + "' is requested more than once for model '" +
             model.name + "'");
    }
    seen[at] = true;
  }
  request.output_names.reserve(request.wanted.size());
  for (const InferRequest::Output& output : request.wanted) {
    require_datatype(*output.declared);
    request.output_names.push_back(output.declared->name.c_str());
  }
}

// Zero, of whichever type, is the default.
bool is_default(const SentValue& value) { return value.missing() || (value.kind <= Kind::real && !value.truthy); }

std::optional<double> timeout_of(const SentValue& given, const ServedModel& model) {
  if (is_default(given)) {
    return model.timeout;
  }
  if (!given.is(Kind::integer) || given.text.starts_with('-')) {
    refuse("the parameter 'timeout' is an integer of microseconds, not " + shortened(repr(given), 50));
  }
  constexpr double microseconds = 1e6;
  const double seconds =
      given.integer ? static_cast<double>(*given.integer) / microseconds : std::numeric_limits<double>::infinity();
  if (!model.timeout) {
    return seconds;
  }
  return model.may_override ? std::min(seconds, *model.timeout) : *model.timeout;
}

int priority_of(const SentValue& given, const ServedModel& model) {
  constexpr std::int64_t most = std::numeric_limits<std::int32_t>::max();
  if (is_default(given)) {
    return 0;
  }
  if (!given.is(Kind::integer) || !given.integer || *given.integer <= 0 || *given.integer > most) {
    refuse("the parameter 'priority' is 1 to " + std::to_string(most) + ", or 0 for the default, not " +
           shortened(repr(given), 50));
  }
  return static_cast<int>(model.priority - *given.integer);
}

// Sets the deadline. The client's time includes that in which its request was received and read.
void set_deadline(InferRequest& request, std::optional<double> seconds) {
  constexpr double most = 1e9;  // later than anybody waits, and a time that clocks have
  if (seconds) {
    const std::chrono::duration<double> wait(std::min(*seconds, most));
    request.deadline = request.call->since + std::chrono::duration_cast<Request::Clock::duration>(wait);
  }
}

}  // namespace

void fill_in(InferRequest& request, const Asked& asked) {
  set_deadline(request, timeout_of(asked.timeout, *request.model));
  request.priority = priority_of(asked.priority, *request.model);
  make_inputs(request, asked);
  choose_outputs(request, asked);
}

}  // namespace ortmulti::serve
