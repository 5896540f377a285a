#include "core/serve/http1_answer.hpp"

#include <algorithm>
#include <string_view>
#include <utility>

namespace ortmulti::serve {
namespace {

constexpr std::size_t most_copied = 4096;

std::string_view reason_phrase(int status) {
  constexpr std::pair<int, std::string_view> phrases[] = {
      {200, "OK"},
      {204, "No Content"},
      {304, "Not Modified"},
      {400, "Bad Request"},
      {401, "Unauthorized"},
      {403, "Forbidden"},
      {404, "Not Found"},
      {405, "Method Not Allowed"},
      {406, "Not Acceptable"},
      {408, "Request Timeout"},
      {409, "Conflict"},
      {411, "Length Required"},
      {413, "Content Too Large"},
      {415, "Unsupported Media Type"},
      {417, "Expectation Failed"},
      {422, "Unprocessable Content"},
      {429, "Too Many Requests"},
      {431, "Request Header Fields Too Large"},
      {499, "Client Closed Request"},
      {500, "Internal Server Error"},
      {501, "Not Implemented"},
      {503, "Service Unavailable"},
      {504, "Gateway Timeout"},
      {505, "HTTP Version Not Supported"},
  };
  const auto* const found = std::ranges::find(phrases, status, &std::pair<int, std::string_view>::first);
  return found == std::end(phrases) ? "" : found->second;
}

/// Whether the connection itself says it.
bool is_framing(std::string_view name) {
  return name == "content-length" || name == "transfer-encoding" || name == "connection" || name == "keep-alive";
}

/// Adds a header's line. Characters that would end the line early become blanks.
void add_line(std::string& text, std::string_view name, std::string_view value) {
  const std::size_t begin = text.size();
  ((text += name) += ": ") += value;
  const auto line = text.begin() + static_cast<std::ptrdiff_t>(begin);
  std::replace_if(line, text.end(), [](char byte) { return byte == '\r' || byte == '\n' || byte == '\0'; }, ' ');
  text += "\r\n";
}

}  // namespace

void Http1Output::add(Reply reply, const Form& form) {
  (((text_ += "HTTP/1.1 ") += std::to_string(reply.status)) += ' ') += reason_phrase(reply.status);
  text_ += "\r\n";
  for (const auto& [name, value] : reply.headers) {
    if (!is_framing(name)) {
      add_line(text_, name, value);
    }
  }
  add_line(text_, "content-length", std::to_string(reply.size()));
  if (form.close || form.keep_alive) {
    add_line(text_, "connection", form.close ? "close" : "keep-alive");
  }
  text_ += "\r\n";
  if (form.without_body) {
    return;
  }
  for (Piece& piece : reply.body) {
    if (pieces_.empty() && piece.bytes.size() <= most_copied) {
      text_ += piece.bytes;
    } else if (!piece.bytes.empty()) {
      pieces_.push_back(std::move(piece));
    }
  }
}

std::size_t Http1Output::parts(std::span<iovec> parts) const {
  std::size_t count = 0;
  const auto add = [&](std::string_view bytes) {
    // writev() does not write there.
    parts[count++] = {const_cast<char*>(bytes.data()), bytes.size()};  // NOLINT(cppcoreguidelines-pro-type-const-cast)
  };
  if (text_sent_ < text_.size() && !parts.empty()) {
    add(std::string_view(text_).substr(text_sent_));
  }
  for (std::size_t piece = piece_; piece < pieces_.size() && count < parts.size(); ++piece) {
    add(pieces_[piece].bytes.substr(piece == piece_ ? piece_sent_ : 0));
  }
  return count;
}

void Http1Output::sent(std::size_t bytes) {
  const std::size_t of_text = std::min(bytes, text_.size() - text_sent_);
  text_sent_ += of_text;
  bytes -= of_text;
  while (bytes > 0 && piece_ < pieces_.size()) {
    Piece& piece = pieces_[piece_];
    const std::size_t of_piece = std::min(bytes, piece.bytes.size() - piece_sent_);
    piece_sent_ += of_piece;
    bytes -= of_piece;
    if (piece_sent_ == piece.bytes.size()) {
      piece.owner.reset();
      ++piece_;
      piece_sent_ = 0;
    }
  }
  if (empty()) {
    clear();
  }
}

void Http1Output::clear() {
  text_.clear();
  pieces_.clear();
  text_sent_ = piece_ = piece_sent_ = 0;
}

}  // namespace ortmulti::serve
