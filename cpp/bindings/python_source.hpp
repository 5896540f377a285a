#pragma once

#include <pybind11/pybind11.h>

#include <memory>

#include "core/base/source.hpp"

namespace ortmulti::bindings {

/// The source that a caller gives: one of the core's, or any object with
///   identity                    a text, as Source::identity(); compared again at each read
///   size                        bytes
///   read_into(buffer, offset)   fills the writable buffer and returns the number of bytes that it wrote; or returns
///                               bytes, or the like, which the core copies without the GIL
/// Threads of the core call it with the GIL, several at a time where it releases that. Throws Error for others.
std::shared_ptr<const Source> to_source(pybind11::handle object);
/// The source of a model, for which Python may also give a file's path, or bytes.
std::shared_ptr<const Source> to_model_source(pybind11::handle object);

}  // namespace ortmulti::bindings
