#include "core/serve/http1.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <system_error>
#include <utility>

#include "core/base/text.hpp"

namespace ortmulti::serve {
namespace {

constexpr std::size_t most_headers = 128;
constexpr int most_empty_lines = 4;

/// Letters, digits and these.
class Characters {
 public:
  constexpr explicit Characters(std::string_view others) {
    for (const std::string_view part :
         {others, std::string_view("0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")}) {
      for (const char byte : part) {
        has_[static_cast<unsigned char>(byte)] = true;
      }
    }
  }
  constexpr bool are_all_of(std::string_view text) const {
    return std::ranges::all_of(text, [this](char byte) { return has_[static_cast<unsigned char>(byte)]; });
  }

 private:
  std::array<bool, 256> has_{};
};

bool is_token(std::string_view text) {
  static constexpr Characters characters("!#$%&'*+-.^_`|~");
  return !text.empty() && characters.are_all_of(text);
}

bool is_host(std::string_view text) {
  static constexpr Characters characters("-._~%!$&'()*+,;=:[]");
  return characters.are_all_of(text);
}

/// Whether a text may be a header's value, or a chunk's extension: it has no control character but a tab.
bool is_value(std::string_view text) {
  return std::ranges::all_of(text, [](char byte) {
    return byte == '\t' || (static_cast<unsigned char>(byte) >= 0x20U && static_cast<unsigned char>(byte) != 0x7FU);
  });
}

std::string_view trimmed(std::string_view text) {
  const std::size_t first = text.find_first_not_of(" \t");
  return first == std::string_view::npos ? "" : text.substr(first, text.find_last_not_of(" \t") - first + 1);
}

/// Whether a list "a, b, c" has it.
bool has_option(std::string_view list, std::string_view option) {
  while (!list.empty()) {
    const std::size_t comma = std::min(list.find(','), list.size());
    if (lower_case(std::string(trimmed(list.substr(0, comma)))) == option) {
      return true;
    }
    list.remove_prefix(std::min(comma + 1, list.size()));
  }
  return false;
}

}  // namespace

Http1Parser::Event Http1Parser::next(std::string_view& input) {
  while (status_ == 0) {
    if (state_ == State::end) {
      return Event::end;
    }
    if (state_ == State::data) {
      piece_ = input.substr(0, static_cast<std::size_t>(std::min<std::uint64_t>(run_, input.size())));
      input.remove_prefix(piece_.size());
      skip(piece_.size());
      return piece_.empty() ? Event::more : Event::body;
    }
    const std::optional<std::string_view> line = take_line(input);
    if (!line) {
      break;
    }
    const bool of_head = state_ <= State::headers;
    on_line(*line);
    if (of_head && state_ > State::headers && status_ == 0) {
      return Event::head;
    }
  }
  return status_ == 0 ? Event::more : Event::error;
}

void Http1Parser::skip(std::uint64_t bytes) noexcept {
  run_ -= bytes;
  if (run_ == 0) {
    state_ = head_.chunked ? State::data_end : State::end;
  }
}

std::optional<std::string_view> Http1Parser::take_line(std::string_view& input) {
  const std::size_t end = input.find('\n');
  const std::size_t size = end == std::string_view::npos ? input.size() : end + 1;
  if (size > most_lines_ - lines_) {
    fail(431, "the request's line and headers, or its trailers, are too large");
  } else if (end != std::string_view::npos && (end == 0 || input[end - 1] != '\r')) {
    fail(400, "a line ends without a carriage return");
  } else if (end != std::string_view::npos) {
    const std::string_view line = input.substr(0, end - 1);
    input.remove_prefix(size);
    lines_ += size;
    return line;
  }
  return std::nullopt;
}

void Http1Parser::on_line(std::string_view line) {
  switch (state_) {
    case State::request_line:
      return on_request_line(line);
    case State::headers:
      return line.empty() ? on_headers_end() : on_header(line);
    case State::chunk_size:
      return on_chunk_size(line);
    case State::trailers:
      if (line.empty()) {
        state_ = State::end;
        return;
      }
      return on_header(line);
    default:
      if (!line.empty()) {
        return fail(400, "a chunk is longer than its size");
      }
      lines_ -= 2;
      state_ = State::chunk_size;
  }
}

void Http1Parser::on_request_line(std::string_view line) {
  if (line.empty()) {
    lines_ -= 2;
    if (++empty_lines_ > most_empty_lines) {
      fail(400, "too many empty lines before a request");
    }
    return;
  }
  const std::size_t first = line.find(' ');
  const std::size_t last = line.rfind(' ');
  if (first == last) {  // or there is none
    return fail(400, "the request's line is not METHOD TARGET HTTP/1.1");
  }
  head_.method = line.substr(0, first);
  const std::string_view version = line.substr(last + 1);
  head_.http_1_0 = version == "HTTP/1.0";
  head_.keep_alive = !head_.http_1_0;
  if (!is_token(head_.method)) {
    return fail(400, "the request's method is not valid");
  }
  if (!head_.http_1_0 && version != "HTTP/1.1") {
    return version.starts_with("HTTP/") && is_value(version)
               ? fail(505, "only HTTP/1.1 and HTTP/1.0 are supported here")
               : fail(400, "the request's line does not end in HTTP/1.1");
  }
  head_.headers.reserve(16);
  on_target(line.substr(first + 1, last - first - 1));
  state_ = State::headers;
}

void Http1Parser::on_target(std::string_view target) {
  if (!std::ranges::all_of(target, [](char byte) { return byte > 0x20 && byte < 0x7F && byte != '#'; })) {
    return fail(400, "the request's target has characters that must be percent-encoded");
  }
  const std::string scheme = lower_case(std::string(target.substr(0, 8)));
  const std::size_t before = scheme.starts_with("http://") ? 7 : scheme == "https://" ? 8 : 0;
  if (before > 0) {
    authority_ = target.substr(before, target.find_first_of("/?", before) - before);
    target.remove_prefix(before + authority_.size());
    if (authority_.empty() || !is_host(authority_)) {
      return fail(400, "the request's target has no valid host");
    }
  }
  const std::size_t mark = std::min(target.find('?'), target.size());
  head_.path = target.substr(0, mark);
  head_.query = target.substr(std::min(mark + 1, target.size()));
  if (head_.path.empty() && before > 0) {
    head_.path = "/";
  }
  if (!head_.path.starts_with('/') && !(target == "*" && head_.method == "OPTIONS")) {
    fail(400, "the request's target does not begin with a slash");
  }
}

void Http1Parser::on_header(std::string_view line) {
  const std::size_t colon = std::min(line.find(':'), line.size());
  const std::string_view name = line.substr(0, colon);
  if (colon == line.size() || !is_token(name) || !is_value(line.substr(colon))) {
    return fail(400, "a header is not NAME: VALUE in one line");
  }
  if (state_ == State::trailers) {
    return;
  }
  if (head_.headers.size() == most_headers) {
    return fail(431, "the request has more than 128 headers");
  }
  head_.headers.emplace_back(lower_case(std::string(name)), trimmed(line.substr(colon + 1)));
}

void Http1Parser::on_headers_end() {
  std::string* host = nullptr;
  const std::string* length = nullptr;
  const std::string* coding = nullptr;
  bool closes = false;
  for (auto& [name, value] : head_.headers) {
    if ((name == "host" && host != nullptr) || (name == "content-length" && length != nullptr) ||
        (name == "transfer-encoding" && coding != nullptr)) {
      return fail(400, "the request has a header twice that it may have once");
    }
    if (name == "host") {
      host = &value;
    } else if (name == "content-length") {
      length = &value;
    } else if (name == "transfer-encoding") {
      coding = &value;
    } else if (name == "connection") {
      closes = closes || has_option(value, "close");
      head_.keep_alive = head_.keep_alive || has_option(value, "keep-alive");
    } else if (name == "expect" && !head_.http_1_0) {
      head_.expects_continue = lower_case(value) == "100-continue";
      if (!head_.expects_continue) {
        return fail(417, "the only expectation that is met is 100-continue");
      }
    }
  }
  if (host == nullptr ? !head_.http_1_0 : !is_host(*host)) {
    return fail(400, "the request has no valid Host header");
  }
  if (host != nullptr && !authority_.empty()) {
    *host = authority_;
  }
  head_.keep_alive = head_.keep_alive && !closes;
  on_framing(length, coding);
  most_lines_ = lines_ + most_head_;
}

void Http1Parser::on_framing(const std::string* length, const std::string* coding) {
  if (coding != nullptr) {
    if (length != nullptr || head_.http_1_0) {
      return fail(400, "Transfer-Encoding has no place beside Content-Length, or in HTTP/1.0");
    }
    if (lower_case(*coding) != "chunked") {
      return fail(501, "the only transfer coding that is supported is chunked");
    }
    head_.chunked = true;
    state_ = State::chunk_size;
    return;
  }
  if (length != nullptr) {
    const auto number = whole_number<std::uint64_t>(*length);
    if (!number) {
      return fail(400, "Content-Length is not a number");
    }
    head_.length = *number;
  }
  run_ = head_.length;
  state_ = run_ > 0 ? State::data : State::end;
}

void Http1Parser::on_chunk_size(std::string_view line) {
  const auto [end, error] = std::from_chars(line.data(), line.data() + line.size(), run_, 16);
  const auto digits = static_cast<std::size_t>(end - line.data());
  const std::string_view extension = line.substr(digits);
  if (error != std::errc() || digits == 0 || (!extension.empty() && extension.front() != ';') || !is_value(extension)) {
    return fail(400, "a chunk's size is not valid");
  }
  lines_ -= digits + 2;  // extensions count
  state_ = run_ > 0 ? State::data : State::trailers;
}

void Http1Parser::fail(int status, const char* problem) noexcept {
  if (status_ == 0) {
    status_ = status;
    problem_ = problem;
  }
}

}  // namespace ortmulti::serve
