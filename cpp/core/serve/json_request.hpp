#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "core/serve/asked.hpp"
#include "core/serve/datatypes.hpp"

namespace ortmulti::serve {

/// The JSON of a request as it was sent: each part may be of any type. Of objects' equal keys the last one counts.
struct JsonRequest {
  struct Input {
    SentValue self;
    SentValue name;
    SentValue datatype;
    SentValue shape;
    SentShape sizes;
    SentValue parameters;
    SentValue binary_data_size;
    bool shared_memory = false;
    SentValue data;
    SentValues values;
    /// Whether the first value so deep in `data` is a list.
    enum class First : std::uint8_t { unknown, list, value };
    std::array<First, SentShape::max_dimensions> first{};
  };
  struct Output {
    SentValue self;
    SentValue name;
    SentValue parameters;
    bool shared_memory = false;
    SentValue classification;
    SentValue binary_data;
  };

  SentValue self;
  SentValue id;
  SentValue parameters;
  SentValue timeout;
  SentValue priority;
  SentValue binary_data_output;
  SentValue inputs;
  std::size_t input_count = 0;
  std::vector<Input> input;  ///< The first ones.
  SentValue outputs;
  std::size_t output_count = 0;
  std::vector<Output> output;
};

/// Reads it, but for the values of inputs, which are counted. At most so many inputs, and outputs, are kept. Throws
/// Refused for what is no JSON.
JsonRequest read_json(std::string_view text, std::size_t most_tensors);

/// Reads it again, and writes the values of inputs where there is a writer. Their number and types were checked.
void read_json_values(std::string_view text, const std::vector<ValueWriter*>& writers);

}  // namespace ortmulti::serve
