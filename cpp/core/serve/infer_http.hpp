#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/serve/answer.hpp"
#include "core/serve/asked.hpp"
#include "core/serve/call.hpp"
#include "core/serve/infer.hpp"

namespace ortmulti::serve {

/// The model and version, which may be empty, of "/v2/models/NAME[/versions/VERSION]/infer", decoded.
struct InferPath {
  std::string model;
  std::string version;
};
/// The parts of a path of infer. Nothing for another path.
std::optional<InferPath> infer_path(std::string_view path);

/// Reads the body, which is JSON with the binary data of inputs behind it. Throws Refused.
Asked read_http(const Call& call, const Limits& limits);

Reply write_http(const InferRequest& request, const std::vector<Answer>& answers);

}  // namespace ortmulti::serve
