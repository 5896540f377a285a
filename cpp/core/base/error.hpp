#pragma once

#include <cstdint>
#include <exception>
#include <optional>
#include <stdexcept>
#include <string>

namespace Ort {
struct Exception;
}

namespace ortmulti {

/// What a caller would tell apart. The first values are ONNX Runtime's codes under its own numbers.
enum class ErrorKind : int {
  fail = 1,
  invalid_argument = 2,
  no_such_file = 3,
  no_model = 4,
  engine_error = 5,
  runtime_exception = 6,
  invalid_protobuf = 7,
  model_loaded = 8,
  not_implemented = 9,
  invalid_graph = 10,
  ep_fail = 11,
  model_load_canceled = 12,
  model_requires_compilation = 13,
  not_found = 14,
  device_reset = 15,
  library = 100,
  device,
  out_of_memory,
  closed,
  forked,
  weights,       ///< A file of weights that cannot be read, or is not what it was.
  invalid_type,  ///< An invalid_argument that is of the wrong type.
  queue_full,
  deadline,   ///< A request's time was over before it was answered.
  cancelled,  ///< Nobody wants the answer any more.
};

/// Every failure of the core: what was asked, what was found and what to do.
class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, const std::string& message) : std::runtime_error(message), kind_(kind) {}
  ErrorKind kind() const noexcept { return kind_; }

 private:
  ErrorKind kind_;
};

/// What an exception says; "unknown" for one that is no std::exception.
std::string text_of(const std::exception_ptr& exception);

/// The kind of an Error; none for other exceptions.
std::optional<ErrorKind> kind_of(const std::exception_ptr& exception);

/// A number of bytes as messages give it: "123 MB", "12.3 MB", "123 kB".
std::string megabytes(std::uint64_t bytes);

/// ONNX Runtime's exception as ours: its code is kept, its text follows `context` ("creating a session on cuda:1") and,
/// in a line of its own, the advice, where there is any.
Error from_onnxruntime(const Ort::Exception& exception, const std::string& context, const std::string& advice = "");

}  // namespace ortmulti
