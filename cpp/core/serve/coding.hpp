#pragma once

#include <string_view>

#include "core/serve/call.hpp"

namespace ortmulti::serve {

/// The coding that an answer gets: "gzip" or "deflate", whichever the request's Accept-Encoding names first, or "".
/// One with binary tensors gets it only where the client names no other coding: many name all that they can by
/// default, and numbers hardly become smaller.
std::string_view accepted_coding(const Headers& request, bool binary);

}  // namespace ortmulti::serve
