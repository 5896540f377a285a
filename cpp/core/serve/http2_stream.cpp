#include "core/serve/http2_stream.hpp"

#include <algorithm>
#include <cstring>

namespace ortmulti::serve {
namespace {

constexpr std::size_t least_reserved = std::size_t{64} << 10;
constexpr std::size_t growth = 4;  // of memory beyond what has arrived: a client may announce more than it sends

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
    if (prefix_[0] != 0) {
      return prefix_[0] == 1 ? refused(501, "compressed messages are not supported: send them as they are (identity)")
                             : refused(400, "the message does not begin as gRPC's do");
    }
    if (prefix_size_ < prefix_.size()) {
      return std::nullopt;
    }
    rest_ = length_of(prefix_);
    if (rest_ > limits.body) {
      return refused(
          413, "the message has " + std::to_string(rest_) + " bytes: " + std::to_string(limits.body) + " are allowed");
    }
  }
  const std::size_t size = std::min(rest_, bytes.size());
  if (size > 0) {
    if (!reserve(call, size)) {
      return refused(503, "the server has no memory for this request now: try again later");
    }
    std::memcpy(call.body.room(size).data(), bytes.data(), size);
    call.body.wrote(size);
    rest_ -= size;
    bytes.remove_prefix(size);
  }
  return std::nullopt;
}

bool GrpcMessage::reserve(Call& call, std::size_t bytes) {
  const std::size_t there = call.body.size();
  if (there + bytes <= reserved_) {
    return true;
  }
  const std::size_t wanted = std::min(there + rest_, std::max({there + bytes, least_reserved, growth * there}));
  if (!call.bytes.grow_to(wanted)) {
    return false;
  }
  call.body.room(wanted - there);
  reserved_ = wanted;
  return call.bytes.grow_to(call.body.resident());
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
