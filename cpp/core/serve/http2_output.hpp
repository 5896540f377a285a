#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "core/serve/call.hpp"

namespace ortmulti::serve {

/// Bytes in the order in which they are sent. Small parts are copied together; large ones stay where they are.
class Http2Output {
 public:
  /// Copies the bytes.
  void append(std::string_view bytes);
  /// Keeps the owner until all bytes before and of this piece are sent; it may have no bytes.
  void append(Piece piece);

  /// Moves so many bytes, which are there, and owners directly behind them, to the end of another.
  void move_to(Http2Output& other, std::size_t bytes);
  /// So many bytes are sent.
  void drop(std::size_t bytes);
  std::size_t fill(std::span<iovec> parts) const;
  std::size_t size() const noexcept { return size_; }

 private:
  std::deque<Piece> pieces_;
  std::shared_ptr<std::string> block_;  ///< Of copied bytes. It does not grow beyond its capacity: pieces refer to it.
  std::size_t size_ = 0;
};

}  // namespace ortmulti::serve
