// Any bytes as a model: they are indexed, rewritten and indexed again, or there is one Error. Nothing is read beyond
// them, and what comes out of the rewriting is what went in but for the places of the initializers' bytes.
#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "core/base/error.hpp"
#include "core/onnx/index.hpp"
#include "core/onnx/rewrite.hpp"
#include "core/onnx/weight_list.hpp"
#include "require.hpp"

namespace {

void check_index(const ortmulti::ModelIndex& index, std::size_t size) {
  const ortmulti::SharingRules rules(index);
  const std::set<std::string> locations = ortmulti::external_locations(index);
  for (const std::string& location : index.other_locations) {
    require(locations.count(location) > 0, "a file of an attribute or a sparse initializer is missing");
  }
  for (const ortmulti::Initializer& initializer : index.initializers) {
    if (initializer.storage == ortmulti::Storage::inline_bytes) {
      require(initializer.offset <= size && initializer.length <= size - initializer.offset, "bytes beyond the end");
    }
    if (initializer.storage == ortmulti::Storage::external) {
      require(locations.count(initializer.location) > 0, "a file of an initializer is missing");
    }
    if (rules.problem(initializer).empty()) {
      require(initializer.length == ortmulti::dense_bytes(initializer.data_type, initializer.shape), "another length");
      require(!initializer.name.empty() && initializer.name.find('\0') == std::string::npos, "no name");
    }
  }
}

void check_rewriting(const ortmulti::ModelIndex& index, const std::uint8_t* data, std::size_t size, std::size_t every) {
  std::vector<ortmulti::Relocation> moved;
  for (std::size_t number = 0; number < index.initializers.size(); number += every) {
    moved.push_back({number, "a file", number, 10 + number});
  }
  const std::string text = ortmulti::relocate_initializers({data, size}, moved);
  const auto* bytes = reinterpret_cast<const unsigned char*>(text.data());
  const ortmulti::ModelIndex again = ortmulti::index_model({bytes, text.size()});
  check_index(again, text.size());
  require(again.operators == index.operators && again.constants == index.constants, "other operators or constants");
  require(again.other_locations == index.other_locations, "other files of attributes and sparse initializers");
  require(again.initializers.size() == index.initializers.size(), "another number of initializers");
  for (std::size_t number = 0; number < again.initializers.size(); ++number) {
    const ortmulti::Initializer& before = index.initializers[number];
    const ortmulti::Initializer& after = again.initializers[number];
    require(after.name == before.name && after.data_type == before.data_type && after.shape == before.shape &&
                after.graph == before.graph && after.overridable == before.overridable &&
                after.of_function == before.of_function,
            "another initializer");
    if (number % every == 0) {
      require(after.storage == ortmulti::Storage::external && after.location == "a file" && after.offset == number &&
                  after.length == 10 + number,
              "not where it was moved to");
    } else {
      require(after.storage == before.storage && after.location == before.location && after.length == before.length,
              "moved");
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    const ortmulti::ModelIndex index = ortmulti::index_model({data, size});
    check_index(index, size);
    for (const std::size_t every : {1, 2, 1000000}) {
      check_rewriting(index, data, size, every);
    }
  } catch (const ortmulti::Error& error) {
    require(error.kind() == ortmulti::ErrorKind::invalid_protobuf, error.what());
  }
  return 0;
}
