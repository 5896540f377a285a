#include "core/serve/answer.hpp"

#include <utility>

#include "core/base/error.hpp"
#include "core/onnx/element_types.hpp"
#include "core/ort/value.hpp"

namespace ortmulti::serve {
namespace {

// An output of up to so many bytes is copied into the answer, which is faster than to send it as a piece of its own.
constexpr std::size_t small_output = 4096;

struct Outputs {
  std::vector<Ort::Value> values;
  std::vector<std::shared_ptr<const void>> owners;
};

// Returns the strings in the protocol's binary form: each has its length before it.
std::shared_ptr<const std::string> binary_strings(const Ort::Value& value, std::size_t count) {
  std::string content(value.GetStringTensorDataLength(), '\0');
  std::vector<std::size_t> begins(count);
  if (count > 0) {
    value.GetStringTensorContent(content.data(), content.size(), begins.data(), begins.size());
  }
  auto out = std::make_shared<std::string>();
  out->reserve(content.size() + count * sizeof(std::uint32_t));
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t end = i + 1 < count ? begins[i + 1] : content.size();
    const auto size = static_cast<std::uint32_t>(end - begins[i]);
    out->append(reinterpret_cast<const char*>(&size), sizeof(size));
    out->append(content, begins[i], size);
  }
  return out;
}

Answer answer_of(const Ort::Value& value, const std::shared_ptr<const Outputs>& outputs) {
  if (value == nullptr || !value.HasValue() || !value.IsTensor()) {
    throw Error(ErrorKind::fail, "an output is no tensor");
  }
  Answer answer;
  const auto info = value.GetTensorTypeAndShapeInfo();
  answer.type = info.GetElementType();
  answer.shape = info.GetShape();
  answer.count = info.GetElementCount();
  if (answer.type == ONNX_TENSOR_ELEMENT_DATA_TYPE_STRING) {
    const auto strings = binary_strings(value, answer.count);
    answer.bytes = *strings;
    answer.owner = strings;
  } else if (answer.count > 0) {
    answer.bytes = {static_cast<const char*>(value.GetTensorRawData()), tensor_bytes(answer.type, answer.shape)};
    answer.owner = outputs;
  }
  return answer;
}

std::vector<Answer> answers_of(const JointRows& rows) {
  std::vector<Answer> answers;
  answers.reserve(rows.outputs->tensors.size());
  for (const JointOutputs::Output& tensor : rows.outputs->tensors) {
    Answer& answer = answers.emplace_back();
    answer.type = tensor.type;
    answer.shape = tensor.shape;
    answer.shape.front() = static_cast<std::int64_t>(rows.count);
    answer.bytes = {reinterpret_cast<const char*>(tensor.data + rows.first * tensor.row_bytes),
                    rows.count * tensor.row_bytes};
    answer.count = answer.bytes.size() * 8 / find_element_type(tensor.type)->bits;
    answer.owner = rows.outputs;
  }
  return answers;
}

}  // namespace

std::vector<Answer> take_answers(InferRequest& request) {
  std::vector<Answer> answers;
  if (request.rows.outputs) {
    answers = answers_of(request.rows);
  } else {
    const auto outputs = std::make_shared<Outputs>();
    outputs->values = std::move(request.outputs);
    outputs->owners = std::move(request.output_owners);
    answers.reserve(outputs->values.size());
    for (const Ort::Value& value : outputs->values) {
      answers.push_back(answer_of(value, outputs));
      // ONNX Runtime returns an input that is also an output as it is. The memory of all inputs is not kept for it.
      if (Answer& answer = answers.back(); request.memory->has(answer.bytes.data())) {
        const auto copy = std::make_shared<const std::string>(answer.bytes);
        answer.bytes = *copy;
        answer.owner = copy;
      }
    }
  }
  if (answers.size() != request.wanted.size()) {
    throw Error(ErrorKind::fail, "a run has another number of outputs");
  }
  for (std::size_t i = 0; i < answers.size(); ++i) {
    answers[i].declared = request.wanted[i].declared;
  }
  return answers;
}

void BodyWriter::add(std::string_view bytes, const std::shared_ptr<const void>& owner) {
  if (bytes.size() <= small_output) {
    text_ += bytes;
    return;
  }
  end_text();
  pieces_.push_back({bytes, owner});
}

void BodyWriter::end_text() {
  if (!text_.empty()) {
    pieces_.push_back(piece_of(std::exchange(text_, {})));
  }
}

std::vector<Piece> BodyWriter::take() {
  end_text();
  return std::move(pieces_);
}

}  // namespace ortmulti::serve
