#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "core/serve/call.hpp"

namespace ortmulti::serve {

/// Reads one request of HTTP/1.1 or 1.0, strictly: whatever two readers could take for different requests is an error.
/// The result does not depend on how its bytes are cut.
class Http1Parser {
 public:
  /// `most_head`: bytes of the request's line and headers, and again of its trailers and chunk extensions.
  explicit Http1Parser(std::size_t most_head) : most_lines_(most_head), most_head_(most_head) {}

  enum class Event : std::uint8_t {
    more,   ///< Further bytes are needed.
    head,   ///< head() is there.
    body,   ///< piece() is the next part of the body.
    end,    ///< The request is all there.
    error,  ///< status() and problem() say why.
  };
  struct Head {
    std::string method;
    std::string path;
    std::string query;
    Headers headers;
    bool http_1_0 = false;
    bool keep_alive = true;
    bool expects_continue = false;
    bool chunked = false;
    std::uint64_t length = 0;  ///< Of a body that is not chunked.
    bool has_body() const noexcept { return chunked || length > 0; }
  };

  /// Reads from the beginning of the input, and removes there what it has read.
  Event next(std::string_view& input);
  Head& head() noexcept { return head_; }
  std::string_view piece() const noexcept { return piece_; }
  int status() const noexcept { return status_; }
  const char* problem() const noexcept { return problem_; }

  /// Whether anything but empty lines was read.
  bool begun() const noexcept { return state_ != State::request_line; }
  /// Bytes of lines that were read, or for which there is memory.
  std::size_t lines() const noexcept { return lines_; }
  /// So many bytes of body come next; skip() where somebody else has read some of them.
  std::uint64_t run() const noexcept { return state_ == State::data ? run_ : 0; }
  void skip(std::uint64_t bytes) noexcept;

 private:
  enum class State : std::uint8_t { request_line, headers, data, data_end, chunk_size, trailers, end };

  std::optional<std::string_view> take_line(std::string_view& input);
  void on_line(std::string_view line);
  void on_request_line(std::string_view line);
  void on_target(std::string_view target);
  void on_header(std::string_view line);
  void on_chunk_size(std::string_view line);
  void on_headers_end();
  void on_framing(const std::string* length, const std::string* coding);
  void fail(int status, const char* problem) noexcept;

  State state_ = State::request_line;
  std::size_t lines_ = 0;
  std::size_t most_lines_;
  std::size_t most_head_;
  int empty_lines_ = 0;
  std::uint64_t run_ = 0;
  Head head_;
  std::string authority_;  ///< Of a target with one.
  std::string_view piece_;
  int status_ = 0;  ///< Of the answer, where there is an error.
  const char* problem_ = "";
};

}  // namespace ortmulti::serve
