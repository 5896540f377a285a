#include "core/weights/mapped_store.hpp"

#include <utility>

#include "core/base/error.hpp"

namespace ortmulti {

MappedWeightStore::MappedWeightStore(WeightList list) : list_(std::move(list)) {
  for (const FileIdentity& file : list_.files) {
    files_.push_back(std::make_unique<MappedFile>(*open_listed(file)));
  }
  const auto memory = Ort::MemoryInfo::CreateCpu(OrtDeviceAllocator, OrtMemTypeDefault);
  for (const Weight& weight : list_.weights) {
    const MappedFile& file = *files_.at(weight.file);
    if (weight.offset > file.size() || weight.length > file.size() - weight.offset) {
      throw Error(ErrorKind::weights,
                  "'" + list_.files[weight.file].path + "' ends before the weight '" + weight.name + "' does");
    }
    // ONNX Runtime's type has no const; it writes no initializer.
    auto* data =
        const_cast<unsigned char*>(file.data() + weight.offset);  // NOLINT(cppcoreguidelines-pro-type-const-cast)
    values_.push_back(Ort::Value::CreateTensor(memory, data, weight.length, weight.shape.data(), weight.shape.size(),
                                               static_cast<ONNXTensorElementDataType>(weight.data_type)));
  }
}

void MappedWeightStore::add_to(Ort::SessionOptions& options) const {
  for (std::size_t i = 0; i < values_.size(); ++i) {
    options.AddInitializer(list_.weights[i].name.c_str(), values_[i]);
  }
}

}  // namespace ortmulti
