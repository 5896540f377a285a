#pragma once

#include <chrono>
#include <cstddef>

namespace ortmulti::serve {

/// What clients may ask for at most, of both protocols together.
struct Limits {
  using Seconds = std::chrono::duration<double>;

  std::size_t memory = std::size_t{1} << 30;   ///< Bytes of bodies that arrive, and of answers until they are sent.
  std::size_t body = std::size_t{64} << 20;    ///< Bytes of a request, as sent.
  std::size_t json = std::size_t{16} << 20;    ///< Bytes of JSON in a request: larger tensors have the binary form.
  std::size_t header = std::size_t{64} << 10;  ///< Bytes of a request's line and headers, and of its trailers.
  std::size_t tensors = 1024;                  ///< Inputs, and outputs, of a request.
  std::size_t concurrent = 1024;               ///< Requests under way.
  std::size_t connections = 10'000;            ///< Open ones.
  std::size_t streams = 128;                   ///< Calls at a time of a connection of HTTP/2.
  Seconds receive{60};                         ///< In which a request has arrived.
  Seconds send{60};                            ///< In which a client takes 64 KiB of its answer, or the rest.
  Seconds idle{75};                            ///< For which a connection without a request stays open.
  Seconds end{25};                             ///< In which the server ends, whatever clients do.
};

}  // namespace ortmulti::serve
