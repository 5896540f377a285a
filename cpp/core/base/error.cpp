#include "core/base/error.hpp"

#include <onnxruntime_cxx_api.h>

namespace ortmulti {
namespace {

// ONNX Runtime has no code for exhausted memory: its allocators say so in words, under FAIL or RUNTIME_EXCEPTION.
bool speaks_of_memory(const std::string& text) {
  for (const char* phrase : {"Failed to allocate memory", "out of memory", "CUDA_ERROR_OUT_OF_MEMORY",
                             "cudaErrorMemoryAllocation", "std::bad_alloc", "bad allocation", "Available memory of"}) {
    if (text.find(phrase) != std::string::npos) {
      return true;
    }
  }
  return false;
}

}  // namespace

Error from_onnxruntime(const Ort::Exception& exception, const std::string& context, const std::string& advice) {
  const std::string text = exception.what();
  const int code = exception.GetOrtErrorCode();
  ErrorKind kind = ErrorKind::fail;
  if (speaks_of_memory(text)) {
    kind = ErrorKind::out_of_memory;
  } else if (code >= static_cast<int>(ErrorKind::fail) && code <= static_cast<int>(ErrorKind::device_reset)) {
    kind = static_cast<ErrorKind>(code);
  }
  return Error(kind, (context.empty() ? "" : context + ": ") + (advice.empty() ? "" : advice + "\n") + text);
}

std::string text_of(const std::exception_ptr& exception) {
  try {
    std::rethrow_exception(exception);
  } catch (const std::exception& error) {
    return error.what();
  } catch (...) {
    return "unknown";
  }
}

std::optional<ErrorKind> kind_of(const std::exception_ptr& exception) {
  try {
    std::rethrow_exception(exception);
  } catch (const Error& error) {
    return error.kind();
  } catch (...) {
    return std::nullopt;
  }
}

std::string megabytes(std::uint64_t bytes) {
  constexpr std::uint64_t mega = 1'000'000;
  if (bytes < mega) {
    return std::to_string(bytes / 1000) + " kB";
  }
  const std::string tenths = bytes < 100 * mega ? "." + std::to_string(bytes / (mega / 10) % 10) : "";
  return std::to_string(bytes / mega) + tenths + " MB";
}

}  // namespace ortmulti
