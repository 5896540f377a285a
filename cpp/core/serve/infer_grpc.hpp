#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/serve/answer.hpp"
#include "core/serve/asked.hpp"
#include "core/serve/datatypes.hpp"
#include "core/serve/infer.hpp"

namespace ortmulti::serve {

/// A message ModelInferRequest, of which views point into it.
struct GrpcRequest {
  struct Input {
    std::string name;
    std::string datatype;
    SentShape shape;
    bool shared_memory = false;
    std::string_view message;  ///< It as a whole.
  };
  struct Output {
    std::string name;
    bool shared_memory = false;
    SentValue classification;
  };

  std::string model;
  std::string version;
  std::string id;
  SentValue timeout;
  SentValue priority;
  std::size_t input_count = 0;
  std::vector<Input> inputs;  ///< The first ones, as the others.
  std::size_t output_count = 0;
  std::vector<Output> outputs;
  std::size_t raw_count = 0;
  std::vector<std::string_view> raw;
};

/// At most so many inputs, outputs and raw contents are kept. Throws Error with ErrorKind::invalid_protobuf.
GrpcRequest read_grpc(std::string_view message, std::size_t most_tensors);

/// Bytes of the raw contents among the first fields of a message: those that take no time to read. It may be none.
std::size_t raw_bytes(std::string_view message);

/// Where the first raw contents begin in a message that begins with these bytes. Nothing: not among them.
std::optional<std::size_t> raw_begin(std::string_view beginning);

/// What does not depend on the model. Throws Refused.
Asked check_grpc(GrpcRequest request, std::size_t most_tensors);

/// Whether values of this datatype have a field of the message, beside raw contents.
bool has_contents(std::string_view datatype);
/// Counts the values of an input that has no raw contents, and writes them.
SentValues count_contents(const AskedInput& input);
void read_contents(const AskedInput& input, ValueWriter& writer);

Reply write_grpc(const InferRequest& request, const std::vector<Answer>& answers);

/// An answer of a stream that says what was wrong.
Reply stream_error(std::string_view text, std::string_view id);

}  // namespace ortmulti::serve
