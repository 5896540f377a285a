#include "core/ort/model_additions.hpp"

#include <sys/stat.h>

#include <mutex>

#include "core/base/error.hpp"
#include "core/ort/empty_sequence.hpp"
#include "core/ort/library.hpp"

namespace ortmulti {

CustomOpLibrary::CustomOpLibrary(const std::string& path) : path_(path) {
  if (struct stat status = {}; path.find('/') != std::string::npos && stat(path.c_str(), &status) == 0) {
    constexpr std::int64_t second = 1'000'000'000;
    size_ = static_cast<std::uint64_t>(status.st_size);
    inode_ = status.st_ino;
    mtime_ns_ = status.st_mtim.tv_sec * second + status.st_mtim.tv_nsec;
  }
  holder_.RegisterCustomOpsLibrary(path.c_str());
}

std::shared_ptr<const CustomOpLibrary> CustomOpLibrary::open(const std::string& path) {
  try {
    // NOLINTNEXTLINE(cppcoreguidelines-owning-memory): the constructor is not std::make_shared's to call
    return std::shared_ptr<const CustomOpLibrary>(new CustomOpLibrary(path));
  } catch (const Ort::Exception& exception) {
    throw from_onnxruntime(exception, "registering the custom operators of '" + path + "'");
  }
}

void CustomOpLibrary::add_to(Ort::SessionOptions& options) const {
  static std::mutex mutex;
  {
    const std::lock_guard lock(mutex);
    if (!domains_known_) {
      // A session alone does it, whatever its model.
      const std::string model = empty_sequence_model(ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT);
      Ort::SessionOptions small = small_session_options();
      small.RegisterCustomOpsLibrary(path_.c_str());
      const Ort::Session session(OnnxRuntime::get().env(), model.data(), model.size(), small);
      domains_known_ = true;
    }
  }
  options.RegisterCustomOpsLibrary(path_.c_str());
}

void ModelAdditions::add_to(Ort::SessionOptions& options) const {
  for (const auto& library : custom_op_libraries) {
    library->add_to(options);
  }
  for (const auto& [name, value] : initializers) {
    options.AddInitializer(name.c_str(), *value);
  }
  if (!external_initializers.empty()) {
    std::vector<const char*> names;
    std::vector<const OrtValue*> values;
    for (const auto& [name, value] : external_initializers) {
      names.push_back(name.c_str());
      values.push_back(*value);
    }
    // The C++ API's wrapper wants to own the values.
    Ort::ThrowOnError(Ort::GetApi().AddExternalInitializers(options, names.data(), values.data(), names.size()));
  }
  if (!files.empty()) {
    std::vector<std::string> names;
    std::vector<char*> buffers;
    std::vector<std::size_t> sizes;
    for (const FileInMemory& file : files) {
      names.push_back(file.name);
      // ONNX Runtime reads from it alone, whatever its type says.
      // NOLINTNEXTLINE(cppcoreguidelines-pro-type-const-cast)
      buffers.push_back(const_cast<char*>(static_cast<const char*>(file.data)));
      sizes.push_back(file.size);
    }
    options.AddExternalInitializersFromFilesInMemory(names, buffers, sizes);
  }
}

}  // namespace ortmulti
