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
  unknown,  ///< No method of gRPC's that the server has. A path of HTTP is somebody else's to know.
};
Route route_of(const Call& call);

/// Whether clients send any number of messages to a method of gRPC; else it is one.
bool has_request_stream(std::string_view path) noexcept;
/// What calls of an unknown method are answered.
Reply unknown_method(const Call& call);

/// The path without slashes at its ends.
std::string_view without_slashes(std::string_view path);
/// The part up to the next slash, which is taken off the path with it.
std::string_view take_path_part(std::string_view& path);

constexpr bool is_health(Route route) { return route == Route::live || route == Route::ready || route == Route::check; }
constexpr bool needs_token(Route route) { return !is_health(route) && route != Route::model_ready; }

/// The token of a header "Bearer TOKEN", whose scheme has no case; empty: it has none.
std::string_view bearer_token(std::string_view authorization) noexcept;
/// In a time that does not tell how much of it is right.
bool same_secret(std::string_view given, std::string_view expected) noexcept;

/// What live, ready and check answer.
Reply health(const Call& call, Route route, bool ready);

/// Bytes of an infer's body that take long to read: all but binary tensors.
std::size_t bytes_to_parse(const Call& call);

}  // namespace ortmulti::serve
