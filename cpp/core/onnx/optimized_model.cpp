#include "core/onnx/optimized_model.hpp"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "core/base/error.hpp"
#include "core/base/file.hpp"
#include "core/base/source.hpp"
#include "core/onnx/index.hpp"
#include "core/onnx/rewrite.hpp"

namespace ortmulti {
namespace {

constexpr std::uint64_t alignment = 256;
constexpr std::size_t block_bytes = std::size_t{1} << 20U;

void check(const std::stop_token& stop) {
  if (stop.stop_requested()) {
    throw Error(ErrorKind::fail, "the optimized model was given up");
  }
}

// Reads a source block by block.
class BlockReader {
 public:
  explicit BlockReader(std::shared_ptr<const Source> source) : source_(std::move(source)), open_(source_->open()) {}

  const std::shared_ptr<const Source>& source() const noexcept { return source_; }

  // Calls `take` with one block of the range after the other, until it says no; false then.
  bool each_block(const std::stop_token& stop, std::uint64_t offset, std::uint64_t length, const auto& take) {
    block_.resize(block_bytes);
    while (length > 0) {
      check(stop);
      const auto count = static_cast<std::size_t>(std::min<std::uint64_t>(length, block_bytes));
      source_->read(block_.data(), count, offset);
      if (!take(block_.data(), count)) {
        return false;
      }
      offset += count;
      length -= count;
    }
    return true;
  }

 private:
  std::shared_ptr<const Source> source_;
  std::shared_ptr<const InputFile> open_;
  std::vector<unsigned char> block_;
};

// The raw_data of the original model's initializers.
class OriginalWeights {
 public:
  explicit OriginalWeights(const std::string& path) : reader_(file_source(path)) {
    for (const Initializer& initializer : index_model(*source()).initializers) {
      if (initializer.storage == Storage::inline_bytes) {
        found_.emplace(initializer.name, std::pair(initializer.offset, initializer.length));
      }
    }
  }

  // Where a weight of this name with these bytes lies.
  std::optional<std::uint64_t> find(const std::stop_token& stop, const std::string& name, const unsigned char* bytes,
                                    std::uint64_t length) {
    const auto [first, last] = found_.equal_range(name);
    for (auto at = first; at != last; ++at) {
      const auto [offset, its_length] = at->second;
      const unsigned char* wanted = bytes;
      if (its_length == length &&
          reader_.each_block(stop, offset, length, [&](const unsigned char* block, std::size_t count) {
            const bool same = std::memcmp(block, wanted, count) == 0;
            wanted += count;
            return same;
          })) {
        return offset;
      }
    }
    return std::nullopt;
  }

  const std::shared_ptr<const Source>& source() const noexcept { return reader_.source(); }

 private:
  BlockReader reader_;
  std::multimap<std::string, std::pair<std::uint64_t, std::uint64_t>> found_;
};

class Splitter {
 public:
  Splitter(const std::string& saved, const std::string& original, const std::string& data_folder, std::string folder,
           const std::stop_token& stop, const SourcesByLocation& sources)
      : stop_(stop),
        saved_source_(file_source(saved)),
        saved_(saved_source_->map()),
        index_(index_model(ModelBytes(saved_.get(), saved_source_->size()))),
        rules_(index_),
        external_(data_folder, original, sources),
        original_path_(original),
        folder_(std::move(folder)) {}

  SplitModel split(const std::set<std::string>& unshared, const std::optional<std::set<std::string>>& inputs) {
    if (!index_.other_locations.empty()) {
      throw Error(ErrorKind::fail, "the external file '" + *index_.other_locations.begin() +
                                       "' holds tensors of attributes, which cannot be moved");
    }
    for (const char* name : {split_model_file, split_weights_file, split_shared_file}) {
      unlink((folder_ + "/" + name).c_str());  // of an earlier attempt
    }
    for (std::size_t index = 0; index < index_.initializers.size(); ++index) {
      check(stop_);
      const Initializer& initializer = index_.initializers[index];
      const bool is_external = initializer.storage == Storage::external;
      // ONNX Runtime copies a function's graphs to where it is used: their tensors stay where they are if they can.
      const bool moves = is_external || (initializer.storage == Storage::inline_bytes && !initializer.of_function &&
                                         initializer.length >= min_shared_bytes);
      std::string problem = rules_.problem(initializer);
      if (problem.empty() && unshared.contains(initializer.name)) {
        problem = "it was not taken before";
      }
      const bool shared = moves && problem.empty() && initializer.length >= min_shared_bytes;
      if (!shared && initializer.length >= min_shared_bytes) {
        result_.weights.left_out.push_back({initializer.name, problem});
      }
      if (shared) {
        share(index, initializer);
      } else if (moves) {
        relocations_.push_back({index, split_weights_file, copy(initializer), initializer.length});
      }
    }
    check_sources();
    finish(inputs ? inputs_without_value(*inputs) : std::set<std::string>{});
    return std::move(result_);
  }

 private:
  void share(std::size_t index, const Initializer& initializer) {
    Weight weight{initializer.name,   initializer.data_type, initializer.shape, 0,
                  initializer.offset, initializer.length};
    const char* file = split_shared_file;
    if (initializer.storage == Storage::external) {
      weight.source = add_source(result_.weights, external_.find(initializer));
    } else if (const auto offset = find_in_original(initializer)) {
      weight.offset = *offset;
      weight.source = add_source(result_.weights, original_->source());
    } else {
      weight.offset = copy(initializer);
      file = split_weights_file;
      own_.push_back(result_.weights.weights.size());
    }
    relocations_.push_back({index, file, weight.offset, weight.length});
    result_.weights.weights.push_back(std::move(weight));
  }

  std::optional<std::uint64_t> find_in_original(const Initializer& initializer) {
    if (original_path_.empty()) {
      return std::nullopt;
    }
    if (!original_) {
      original_ = std::make_unique<OriginalWeights>(original_path_);
    }
    return original_->find(stop_, initializer.name, saved_.get() + initializer.offset, initializer.length);
  }

  // Adds its bytes to weights.bin; their offset there.
  std::uint64_t copy(const Initializer& initializer) {
    if (!weights_) {
      weights_ = std::make_unique<OutputFile>(folder_ + "/" + split_weights_file);
    }
    const std::uint64_t padding = (alignment - weights_->size() % alignment) % alignment;
    weights_->write(std::vector<unsigned char>(padding).data(), padding);
    const std::uint64_t offset = weights_->size();
    reader_of(initializer.storage == Storage::external ? external_.find(initializer) : saved_source_)
        .each_block(stop_, initializer.offset, initializer.length, [&](const unsigned char* block, std::size_t count) {
          weights_->write(block, count);
          return true;
        });
    return offset;
  }

  BlockReader& reader_of(const std::shared_ptr<const Source>& source) {
    return readers_.try_emplace(source->identity(), source).first->second;
  }

  void check_sources() const {
    if (original_) {
      original_->source()->check();
    }
    for (const auto& [identity, reader] : readers_) {
      reader.source()->check();
    }
  }

  // The saved graph's inputs that are neither the model's nor initializers.
  std::set<std::string> inputs_without_value(const std::set<std::string>& of_model) const {
    std::set<std::string> result = index_.inputs;
    for (const Initializer& initializer : index_.initializers) {
      if (initializer.graph == 0) {
        result.erase(initializer.name);
      }
    }
    for (const auto* const names : {&of_model, &index_.constants}) {
      for (const std::string& name : *names) {
        result.erase(name);
      }
    }
    return result;
  }

  void finish(const std::set<std::string>& dropped_inputs) {
    OutputFile model(folder_ + "/" + split_model_file);
    const std::string graph =
        relocate_initializers({saved_.get(), saved_source_->size()}, relocations_, dropped_inputs);
    model.write(graph.data(), graph.size());
    model.close();
    OutputFile shared(folder_ + "/" + split_shared_file);
    shared.close();
    if (weights_) {
      weights_->close();
      result_.own_bytes = weights_->size();
      if (!own_.empty()) {
        const std::size_t file = add_source(result_.weights, file_source(weights_->path()));
        for (const std::size_t index : own_) {
          result_.weights.weights[index].source = file;
        }
      }
    }
    model.keep();
    shared.keep();
    if (weights_) {
      weights_->keep();
    }
  }

  const std::stop_token& stop_;
  std::shared_ptr<const Source> saved_source_;
  std::shared_ptr<const unsigned char> saved_;  // all of it
  ModelIndex index_;
  SharingRules rules_;
  ExternalFiles external_;
  std::string original_path_;
  std::string folder_;
  std::unique_ptr<OriginalWeights> original_;
  std::map<std::string, BlockReader> readers_;  // by identity
  std::unique_ptr<OutputFile> weights_;
  std::vector<std::size_t> own_;  // the shared weights that lie in weights.bin
  std::vector<Relocation> relocations_;
  SplitModel result_;
};

}  // namespace

SplitModel split_optimized_model(const std::string& saved, const std::string& original, const std::string& data_folder,
                                 const std::string& folder, const std::set<std::string>& unshared,
                                 const std::stop_token& stop, const SourcesByLocation& sources,
                                 const std::optional<std::set<std::string>>& inputs) {
  return Splitter(saved, original, data_folder, folder, stop, sources).split(unshared, inputs);
}

std::vector<std::string> changed_weights(const std::string& saved, const std::string& original,
                                         const std::string& data_folder, const WeightList& given) {
  std::map<std::string, const Weight*> weights;
  for (const Weight& weight : given.weights) {
    weights.emplace(weight.name, &weight);
  }
  const ModelIndex index = index_model(*file_source(saved));
  ExternalFiles files(data_folder, original);
  std::vector<std::string> changed;
  for (const Initializer& found : index.initializers) {
    const auto at = weights.find(found.name);
    if (at == weights.end()) {
      continue;
    }
    const Weight& weight = *at->second;
    const bool same = found.storage == Storage::external &&
                      files.find(found)->identity() == given.sources[weight.source]->identity() &&
                      found.offset == weight.offset && found.length == weight.length &&
                      found.data_type == weight.data_type && found.shape == weight.shape;
    if (!same) {
      changed.push_back(found.name);
    }
  }
  for (const std::string& name : index.constants) {
    if (weights.contains(name)) {
      changed.push_back(name);
    }
  }
  return changed;
}

}  // namespace ortmulti
