#pragma once

#include <onnxruntime_cxx_api.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/serve/call.hpp"
#include "core/serve/infer.hpp"

namespace ortmulti::serve {

/// An output of a run.
struct Answer {
  const Declared* declared = nullptr;
  ONNXTensorElementDataType type = ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED;
  std::vector<std::int64_t> shape;
  std::size_t count = 0;   ///< Of elements.
  std::string_view bytes;  ///< In the protocol's binary form.
  std::shared_ptr<const void> owner;
};

/// Takes the outputs of a request that is done. Throws Error for what the protocol cannot send.
std::vector<Answer> take_answers(InferRequest& request);

/// A body of text and larger pieces of memory, without a copy of these.
class BodyWriter {
 public:
  std::string& text() noexcept { return text_; }
  void add(std::string_view bytes, const std::shared_ptr<const void>& owner);
  std::vector<Piece> take();

 private:
  void end_text();

  std::string text_;
  std::vector<Piece> pieces_;
};

}  // namespace ortmulti::serve
