#include "core/serve/http2_output.hpp"

#include <algorithm>
#include <utility>

namespace ortmulti::serve {
namespace {

constexpr std::size_t block_size = 4096;
constexpr std::size_t most_joined = 512;  // an entry of the system's call costs about as much

}  // namespace

void Http2Output::append(std::string_view bytes) {
  while (!bytes.empty()) {
    if (block_ == nullptr || block_->size() == block_->capacity()) {
      auto block = std::make_shared<std::string>();
      block->reserve(block_size);
      block_ = std::move(block);
    }
    const std::string_view part = bytes.substr(0, block_->capacity() - block_->size());
    const char* const at = block_->data() + block_->size();
    if (!pieces_.empty() && pieces_.back().owner == block_) {
      Piece& last = pieces_.back();
      block_->append(part);
      last.bytes = {last.bytes.data(), last.bytes.size() + part.size()};
    } else {
      pieces_.push_back({{at, part.size()}, block_});
      block_->append(part);
    }
    size_ += part.size();
    bytes.remove_prefix(part.size());
  }
}

void Http2Output::append(Piece piece) {
  if (!piece.bytes.empty() && piece.bytes.size() <= most_joined) {
    append(piece.bytes);
  } else if (!piece.bytes.empty() || piece.owner != nullptr) {
    size_ += piece.bytes.size();
    pieces_.push_back(std::move(piece));
  }
}

void Http2Output::move_to(Http2Output& other, std::size_t bytes) {
  while (!pieces_.empty() && (bytes > 0 || pieces_.front().bytes.empty())) {
    Piece& first = pieces_.front();
    const std::size_t size = std::min(bytes, first.bytes.size());
    other.append({first.bytes.substr(0, size), first.owner});
    size_ -= size;
    bytes -= size;
    first.bytes.remove_prefix(size);
    if (first.bytes.empty()) {
      pieces_.pop_front();
    }
  }
}

void Http2Output::drop(std::size_t bytes) {
  while (!pieces_.empty() && (bytes > 0 || pieces_.front().bytes.empty())) {
    Piece& first = pieces_.front();
    const std::size_t size = std::min(bytes, first.bytes.size());
    size_ -= size;
    bytes -= size;
    first.bytes.remove_prefix(size);
    if (first.bytes.empty()) {
      pieces_.pop_front();
    }
  }
  if (pieces_.empty()) {
    block_.reset();  // thousands of quiet connections need none
  }
}

std::size_t Http2Output::fill(std::span<iovec> parts) const {
  std::size_t count = 0;
  for (auto piece = pieces_.begin(); piece != pieces_.end() && count < parts.size(); ++piece) {
    if (!piece->bytes.empty()) {
      parts[count++] = {const_cast<char*>(piece->bytes.data()), piece->bytes.size()};
    }
  }
  return count;
}

}  // namespace ortmulti::serve
