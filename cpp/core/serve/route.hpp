#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "core/serve/call.hpp"

namespace ortmulti::serve {

/// Which part of the server answers a call.
enum class Route : std::uint8_t {
  live,
  ready,
  check,        ///< gRPC's own health service.
  model_ready,  ///< Not answered here, but for everybody.
  infer,
  other,
  unknown,  ///< A method of gRPC that is of no service here.
};
Route route_of(const Call& call);

/// The part up to the next slash, which is taken off the path with it.
std::string_view take_path_part(std::string_view& path);

constexpr bool is_health(Route route) { return route == Route::live || route == Route::ready || route == Route::check; }
constexpr bool needs_token(Route route) { return !is_health(route) && route != Route::model_ready; }

/// In a time that does not tell how much of it is right.
bool same_secret(std::string_view given, std::string_view expected) noexcept;

/// What live, ready and check answer.
Reply health(const Call& call, Route route, bool ready);

/// Bytes of an infer's body that take long to read: all but binary tensors. Of a message that is none, its size.
std::size_t bytes_to_parse(const Call& call) noexcept;

}  // namespace ortmulti::serve
