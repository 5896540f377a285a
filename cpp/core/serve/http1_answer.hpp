#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "core/serve/call.hpp"

namespace ortmulti::serve {

/// Bytes of HTTP/1.1 that wait to be sent: one answer, and what goes before it. Large pieces are not copied.
class Http1Output {
 public:
  struct Form {
    bool without_body = false;  ///< HEAD: its length is given all the same.
    bool close = false;
    bool keep_alive = false;  ///< It is said: to clients of HTTP/1.0.
  };
  void add(Reply reply, const Form& form);
  /// The client may send the body.
  void add_continue() { text_ += "HTTP/1.1 100 Continue\r\n\r\n"; }

  /// Fills in what comes next, and returns of how many parts it is.
  std::size_t parts(std::span<iovec> parts) const;
  void sent(std::size_t bytes);
  bool empty() const noexcept { return text_sent_ == text_.size() && piece_ == pieces_.size(); }
  void clear();

 private:
  std::string text_;  ///< Heads, and small pieces behind them.
  std::size_t text_sent_ = 0;
  std::vector<Piece> pieces_;   ///< Behind the text.
  std::size_t piece_ = 0;       ///< The first one of which something is left ...
  std::size_t piece_sent_ = 0;  ///< ... but so many bytes.
};

}  // namespace ortmulti::serve
