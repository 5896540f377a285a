// Any bytes as a request of vectors: it is read, with texts of UTF-8 that are no longer than the bytes, or left to
// Python.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "core/serve/datatypes.hpp"
#include "core/serve/vector_request.hpp"
#include "require.hpp"

namespace {

using namespace ortmulti::serve;

void check(std::string_view body, const char* path) {
  static BufferPool buffers(0);
  static Admission admission{Limits{}};
  Call call(Protocol::http, buffers, admission);
  call.method = "POST";
  call.path = path;
  call.body.append(body);
  const auto asked = read_vectors(call);
  if (!asked) {
    return;
  }
  require(!asked->texts.empty(), "no text");
  std::size_t size = 0;
  for (const std::string& text : asked->texts) {
    require(!text.empty() && is_utf8(text), "a text that is empty, or no UTF-8");
    size += text.size();
  }
  require(size <= body.size(), "more than was sent");
  require(is_utf8(asked->wish.model) && is_utf8(asked->wish.prompt), "a name that is no UTF-8");
  require(asked->wish.dimensions.value_or(1) > 0, "no dimensions");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  check(text, "/v1/embeddings");
  check(text, "/embed");
  return 0;
}
