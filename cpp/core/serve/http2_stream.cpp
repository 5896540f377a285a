#include "core/serve/http2_stream.hpp"

#include <algorithm>
#include <cstring>

#include "core/serve/infer_grpc.hpp"

namespace ortmulti::serve {
namespace {

// A message of one byte takes pages of memory all the same.
constexpr std::size_t least_counted = std::size_t{16} << 10;
// A smaller message costs less to copy than to look into.
constexpr std::size_t least_aligned = std::size_t{16} << 10;

std::size_t length_of(const std::array<char, 5>& prefix) {
  std::size_t length = 0;
  for (std::size_t i = 1; i < prefix.size(); ++i) {
    length = length << 8U | static_cast<unsigned char>(prefix[i]);
  }
  return length;
}

Reply refused(int status, std::string_view text) { return refusal(Protocol::grpc, status, text); }

}  // namespace

std::array<char, 5> GrpcMessage::prefix(std::size_t length) noexcept {
  std::array<char, 5> prefix{};
  for (std::size_t i = prefix.size(); --i > 0; length >>= 8U) {
    prefix[i] = static_cast<char>(length & 0xFFU);
  }
  return prefix;
}

std::optional<Reply> GrpcMessage::take(Call& call, std::string_view& bytes, const Limits& limits) {
  if (prefix_size_ < prefix_.size()) {
    const std::size_t size = bytes.copy(&prefix_[prefix_size_], prefix_.size() - prefix_size_);
    bytes.remove_prefix(size);
    prefix_size_ += size;
    if (auto reply = begin(call, limits)) {
      return reply;
    }
  }
  const std::size_t size = std::min(rest_, bytes.size());
  if (size > 0) {
    if (call.body.size() == 0 && rest_ >= least_aligned) {
      // So that the tensor is used where it is. The beginning is there: it comes in frames of 16 KiB and more.
      call.body.align(raw_begin(bytes.substr(0, size)).value_or(0));
    }
    std::memcpy(call.body.room(rest_).data(), bytes.data(), size);
    call.body.wrote(size);
    rest_ -= size;
    bytes.remove_prefix(size);
    if (!call.bytes.grow_to(std::max(call.body.resident(), std::min(call.body.size() + rest_, least_counted)))) {
      return refused(503, "the server has no memory for this request now: try again later");
    }
  }
  return std::nullopt;
}

// Reads as much as there is of what stands before a message.
std::optional<Reply> GrpcMessage::begin(Call& call, const Limits& limits) {
  enum : char { as_it_is = 0, compressed = 1 };
  if (prefix_[0] != as_it_is && prefix_[0] != compressed) {
    return refused(400, "the message does not begin as gRPC's do");
  }
  if (prefix_[0] == compressed) {
    const std::string* const encoding = find(call.headers, "grpc-encoding");
    if (encoding == nullptr || *encoding == "identity") {
      return refused(500, "the message is marked as compressed, and the header grpc-encoding does not say how");
    }
    if (*encoding != "gzip" && *encoding != "deflate") {
      constexpr std::size_t most_quoted = 20;
      return refused(501, "the grpc-encoding '" + encoding->substr(0, most_quoted) +
                              "' is not known: compress messages with gzip or deflate, or send them as they are");
    }
    call.compressed = true;
  }
  if (prefix_size_ < prefix_.size()) {
    return std::nullopt;
  }
  rest_ = length_of(prefix_);
  if (rest_ > limits.body) {
    return refused(
        413, "the message has " + std::to_string(rest_) + " bytes: " + std::to_string(limits.body) + " are allowed");
  }
  return std::nullopt;
}

bool WaitingBytes::add(std::string_view bytes) {
  if (!counted_.grow_to(text_.size() + bytes.size())) {
    return false;
  }
  text_.append(bytes);
  return true;
}

void WaitingBytes::remove(std::size_t bytes) {
  taken_ += bytes;
  if (taken_ == text_.size()) {
    std::string().swap(text_);             // its memory is counted no more
  } else if (taken_ > text_.size() / 2) {  // seldom enough to cost little
    text_.erase(0, taken_);
  } else {
    return;
  }
  taken_ = 0;
  counted_.resize_down(text_.size());
}

}  // namespace ortmulti::serve
