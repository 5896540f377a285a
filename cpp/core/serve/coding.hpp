#pragma once

#include <string_view>

#include "core/serve/call.hpp"

namespace ortmulti::serve {

/// The coding that an answer gets: "gzip" or "deflate", whichever the request's Accept-Encoding names first, or "".
/// An answer with binary tensors gets it only if the client names no other coding: many clients name all that they can
/// by default, and numbers hardly become smaller.
std::string_view accepted_coding(const Headers& request, bool binary);

}  // namespace ortmulti::serve
