#pragma once

#include <exception>
#include <string>

namespace ortmulti::serve {

/// A failure as a client sees it: a status of HTTP, and a text. The text is UTF-8. It has no path of this host.
struct PublicError {
  int status = 500;
  std::string text;
};
PublicError public_error(const std::exception_ptr& error);

/// The first line of a message without ONNX Runtime's prefix and without folders: as ortmulti.errors in Python.
std::string without_folders(const std::string& message);

}  // namespace ortmulti::serve
