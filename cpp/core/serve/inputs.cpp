#include "core/serve/inputs.hpp"

#include <algorithm>
#include <cstdint>
#include <new>
#include <utility>

#include "core/onnx/element_types.hpp"
#include "core/ort/value.hpp"
#include "core/serve/buffer.hpp"
#include "core/serve/infer_grpc.hpp"
#include "core/serve/json_request.hpp"

namespace ortmulti::serve {
namespace {

using Kind = SentValue::Kind;
using Form = AskedInput::Form;

// Of every tensor: the order in which ONNX Runtime adds elements, and so the last bits of an answer, depend on it.
constexpr std::size_t tensor_alignment = BufferPool::alignment;

std::size_t element_bytes(const Declared& declared) { return find_element_type(declared.type)->bits / 8; }

bool is_text(const Declared& declared) { return declared.type == ONNX_TENSOR_ELEMENT_DATA_TYPE_STRING; }

// Python's repr() of a list of names.
std::string listed_names(const std::vector<std::string_view>& names) {
  std::string out = "[";
  for (const std::string_view name : names) {
    out += (out.size() == 1 ? "" : ", ") + repr(name);
  }
  return out + "]";
}

void check_shape(const Declared& declared, const SentShape& shape, const std::string& model) {
  bool fits = shape.count == declared.shape.size() && shape.count <= SentShape::max_dimensions;
  for (std::size_t i = 0; fits && i < shape.count; ++i) {
    fits = shape.sizes[i] >= 0 && (declared.shape[i] == -1 || declared.shape[i] == shape.sizes[i]);
  }
  if (fits) {
    return;
  }
  SentShape wanted;
  for (const std::int64_t size : declared.shape) {
    wanted.add(size);
  }
  const bool open = std::ranges::find(declared.shape, -1) != declared.shape.end();
  refuse("unexpected shape for input '" + declared.name + "' for model '" + model + "'. Expected [" + wanted.text() +
         "], got [" + shape.text() + "]" + (open ? " (-1 is any size of 0 or more)" : ""));
}

// Makes the inputs of one request.
class Inputs {
 public:
  Inputs(InferRequest& request, const Asked& asked)
      : request_(request),
        asked_(asked),
        model_(*request.model),
        made_(model_.inputs.size() + model_.optional.size()) {}

  void make();

 private:
  struct Made {
    const Declared* declared = nullptr;  // null: it was not sent
    HostTensor tensor;
    Ort::Value value{nullptr};  // in place of `tensor`
    bool empty = false;
  };

  Made& find(const AskedInput& input);
  void take(Made& made, const AskedInput& input);
  void take_bytes(Made& made, const AskedInput& input);
  void take_strings(Made& made, const AskedInput& input);
  void take_values(Made& made, const AskedInput& input);
  void read_values(const Made& made, const AskedInput& input, ValueWriter& writer);
  void check_values(const Declared& declared, const AskedInput& input, const SentValues& values) const;
  void check_written(const Made& made, const ValueWriter& writer) const;
  void read_json();
  void count_rows();
  void check_complete() const;
  void check_not_empty() const;
  void add();

  std::byte* allocate(std::size_t bytes);
  void count(std::size_t bytes);
  void set(Made& made, const SentShape& shape, const void* data);
  Ort::Value& new_strings(Made& made, const AskedInput& input, std::size_t count, std::size_t characters);

  InferRequest& request_;
  const Asked& asked_;
  const ServedModel& model_;
  std::vector<Made> made_;            // by what is declared
  std::vector<std::size_t> order_;    // in which they were sent
  std::vector<ValueWriter> writers_;  // of inputs whose values are JSON
  std::vector<std::size_t> written_;  // which inputs these are, as they were sent
};

void Inputs::make() {
  order_.reserve(asked_.inputs.size());
  for (const AskedInput& input : asked_.inputs) {
    Made& made = find(input);
    check_shape(*made.declared, input.shape, model_.name);
    made.empty = input.shape.elements() == 0;
  }
  count_rows();  // before memory is taken for them
  for (std::size_t i = 0; i < order_.size(); ++i) {
    take(made_[order_[i]], asked_.inputs[i]);
  }
  read_json();
  check_complete();
  check_not_empty();
  add();
}

Inputs::Made& Inputs::find(const AskedInput& input) {
  const auto in = [&](const std::vector<Declared>& all) {
    return static_cast<std::size_t>(std::ranges::find(all, input.name, &Declared::name) - all.begin());
  };
  std::size_t at = in(model_.inputs);
  const bool required = at < model_.inputs.size();
  at += required ? 0 : in(model_.optional);
  if (at == made_.size()) {
    refuse("unexpected inference input '" + shortened(input.name, most_name) + "' for model '" + model_.name + "'");
  }
  const Declared& declared = required ? model_.inputs[at] : model_.optional[at - model_.inputs.size()];
  Made& made = made_[at];
  if (made.declared != nullptr) {
    refuse("input '" + declared.name + "' already exists in request");
  }
  require_datatype(declared);
  if (input.datatype != declared.datatype) {
    refuse("inference input '" + declared.name + "' data-type is '" + shortened(input.datatype, 20) + "', but model '" +
           model_.name + "' expects '" + declared.datatype + "'");
  }
  if (model_.joins && !required) {
    refuse("the initializer '" + declared.name + "' cannot be sent to model '" + model_.name +
           "': requests that are joined have one value of it in common");
  }
  made.declared = &declared;
  order_.push_back(at);
  return made;
}

void Inputs::take(Made& made, const AskedInput& input) {
  if (input.form != Form::binary) {
    take_values(made, input);
  } else if (is_text(*made.declared)) {
    take_strings(made, input);
  } else {
    take_bytes(made, input);
  }
}

void Inputs::take_bytes(Made& made, const AskedInput& input) {
  const std::size_t each = element_bytes(*made.declared);
  const auto count = input.shape.elements();
  if (!count || input.binary.size() % each != 0 || input.binary.size() / each != *count) {
    SentShape bytes = input.shape;
    bytes.sizes.push_back(static_cast<std::int64_t>(each));
    refuse("input byte size mismatch for input '" + made.declared->name + "' for model '" + model_.name +
           "'. Expected " + bytes.elements_text() + ", got " + std::to_string(input.binary.size()));
  }
  std::byte* data = input.binary.data();
  if (made.declared->type == ONNX_TENSOR_ELEMENT_DATA_TYPE_BOOL) {
    normalize_bools(input.binary);
  }
  if (reinterpret_cast<std::uintptr_t>(data) % tensor_alignment != 0) {
    data = allocate(input.binary.size());
    std::ranges::copy(input.binary, data);
  }
  set(made, input.shape, data);
}

void Inputs::take_strings(Made& made, const AskedInput& input) {
  std::string_view left(reinterpret_cast<const char*>(input.binary.data()), input.binary.size());
  const auto count = input.shape.elements();
  if (!count || !holds_strings(left, *count)) {
    refuse("the data of input '" + made.declared->name + "' are not " + input.shape.elements_text() +
           " strings, each with its length in 4 bytes");
  }
  ValueWriter writer(new_strings(made, input, *count, left.size()), *count);
  while (!left.empty()) {
    writer.put(take_string(left));
  }
  check_written(made, writer);
}

void Inputs::take_values(Made& made, const AskedInput& input) {
  const Declared& declared = *made.declared;
  const SentValues values = input.form == Form::json ? input.values : count_contents(input);
  check_values(declared, input, values);
  if (is_text(declared)) {
    ValueWriter writer(new_strings(made, input, values.count, values.characters), values.count);
    read_values(made, input, writer);
  } else {
    std::byte* const data = allocate(values.count * element_bytes(declared));
    set(made, input.shape, data);
    ValueWriter writer(declared.type, data, values.count);
    read_values(made, input, writer);
  }
}

// Reads an input's values. Values in JSON are read later, those of all inputs at once.
void Inputs::read_values(const Made& made, const AskedInput& input, ValueWriter& writer) {
  if (input.form == Form::json) {
    writers_.push_back(writer);
    written_.push_back(static_cast<std::size_t>(&input - asked_.inputs.data()));
    return;
  }
  read_contents(input, writer);
  check_written(made, writer);
}

void Inputs::check_values(const Declared& declared, const AskedInput& input, const SentValues& values) const {
  const std::string of = "input '" + declared.name + "' for model '" + model_.name + "'";
  if (values.list && values.uneven) {
    refuse("the data are nested unevenly");
  }
  if (!values.list || input.shape.elements() != values.count) {
    refuse(of + " has the shape [" + input.shape.text() + "], which is " + input.shape.elements_text() +
           " values, and its data are " + (values.list ? std::to_string(values.count) : "no list"));
  }
  if (is_text(declared)) {
    if (!values.only(SentValues::bit(Kind::text))) {
      refuse("the data of input '" + declared.name + "' are not all strings");
    }
    return;
  }
  unsigned wanted = SentValues::bit(Kind::integer);
  if (declared.type == ONNX_TENSOR_ELEMENT_DATA_TYPE_BOOL) {
    wanted = SentValues::bit(Kind::boolean);
  } else if (find_element_type(declared.type)->is_float()) {
    wanted |= SentValues::bit(Kind::real);
  }
  if (!values.only(wanted)) {
    refuse("the data of " + of + " are not all " + declared.datatype);
  }
}

void Inputs::check_written(const Made& made, const ValueWriter& writer) const {
  if (!writer.complete() && is_text(*made.declared)) {
    refuse("input '" + made.declared->name + "' has a string that is not UTF-8");
  }
  if (!writer.complete()) {
    refuse("the data of input '" + made.declared->name + "' are not " + made.declared->datatype + ": " +
           writer.problem());
  }
}

void Inputs::read_json() {
  if (writers_.empty()) {
    return;
  }
  std::vector<ValueWriter*> by_input(asked_.inputs.size());
  for (std::size_t i = 0; i < writers_.size(); ++i) {
    by_input[written_[i]] = &writers_[i];
  }
  read_json_values(asked_.json, by_input);
  for (std::size_t i = 0; i < writers_.size(); ++i) {
    check_written(made_[order_[written_[i]]], writers_[i]);
  }
}

void Inputs::count_rows() {
  if (!model_.counts_rows && model_.max_rows == 0) {
    return;
  }
  std::optional<std::int64_t> most;
  for (std::size_t i = 0; i < order_.size(); ++i) {
    const bool required = order_[i] < model_.inputs.size();
    const Declared& declared = *made_[order_[i]].declared;
    if (required && !declared.shape.empty() && declared.shape.front() == -1) {
      most = std::max(most.value_or(0), asked_.inputs[i].shape.sizes.front());
    }
  }
  request_.row_count = static_cast<std::size_t>(most.value_or(1));
  if (model_.max_rows != 0 && request_.row_count > model_.max_rows) {
    refuse("[request id: " + (asked_.id.empty() ? "<id_unknown>" : shortened(asked_.id, most_name)) +
           "] inference request batch-size must be <= " + std::to_string(model_.max_rows) + " for '" + model_.name +
           "'");
  }
}

void Inputs::check_complete() const {
  std::vector<std::string_view> missing;
  for (std::size_t i = 0; i < model_.inputs.size(); ++i) {
    const bool is_mask = model_.padding && model_.padding->mask == model_.inputs[i].name;
    if (made_[i].declared == nullptr && !is_mask) {
      missing.emplace_back(model_.inputs[i].name);
    }
  }
  if (missing.empty()) {
    return;
  }
  std::vector<std::string_view> got;
  got.reserve(order_.size());
  for (const std::size_t at : order_) {
    got.emplace_back(made_[at].declared->name);
  }
  refuse("expected " + std::to_string(model_.inputs.size()) + " inputs but got " + std::to_string(got.size()) +
         " inputs for model '" + model_.name + "'. Got input(s) " + listed_names(got) +
         ", but missing required input(s) " + listed_names(missing) + ". Please provide all required input(s).");
}

// onnxruntime's recurrent operators start no run of empty inputs, and end the process (1.32).
void Inputs::check_not_empty() const {
  for (std::size_t i = 0; model_.recurrent && i < order_.size(); ++i) {
    if (made_[order_[i]].empty) {
      std::string shape = asked_.inputs[i].shape.text();
      for (std::size_t at = 0; (at = shape.find(',', at)) != std::string::npos; at += 2) {
        shape.replace(at, 1, ", ");
      }
      refuse("input '" + asked_.inputs[i].name + "' is empty (shape [" + shape +
             "]), which a model with LSTM, GRU or RNN, or one whose file has changed since it was loaded, does not "
             "take: send at least one element");
    }
  }
}

// In the model's order, so that requests of clients with other ones can be joined.
void Inputs::add() {
  request_.inputs.reserve(made_.size());
  for (Made& made : made_) {
    if (made.declared != nullptr && made.value != nullptr) {
      request_.inputs.add(made.declared->name.c_str(), std::move(made.value));
    } else if (made.declared != nullptr) {
      request_.inputs.add(made.declared->name.c_str(), made.tensor);
    }
  }
  if (model_.padding) {
    if (const auto shape = model_.padding->mask_shape(request_.inputs); !shape.empty()) {
      model_.padding->add_mask(request_.inputs, shape);
    }
  }
}

// Counts memory that is taken for this request, beside its body.
void Inputs::count(std::size_t bytes) {
  Admission::Bytes& counted = request_.call->bytes;
  if (!counted.grow_to(counted.count() + bytes)) {
    throw Refused(503, "the server has no memory for this request now");
  }
}

std::byte* Inputs::allocate(std::size_t bytes) {
  count(bytes);
  const std::size_t size = std::max(bytes, std::size_t{1});  // an address of its own
  auto* const memory = static_cast<std::byte*>(::operator new(size, std::align_val_t{tensor_alignment}));
  const auto free = [](std::byte* begin) { ::operator delete(begin, std::align_val_t{tensor_alignment}); };
  request_.memory->blocks.push_back({std::shared_ptr<std::byte[]>(memory, free), size});
  return memory;
}

void Inputs::set(Made& made, const SentShape& shape, const void* data) {
  static constexpr std::byte nothing{};
  request_.input_bytes += static_cast<std::size_t>(shape.elements().value_or(0)) * element_bytes(*made.declared);
  data = data == nullptr ? &nothing : data;
  if (shape.count > HostTensor::max_dimensions) {
    made.value = value_over(data, made.declared->type, shape.sizes.data(), shape.count);
    return;
  }
  made.tensor.type = made.declared->type;
  made.tensor.rank = shape.count;
  std::ranges::copy(shape.sizes, made.tensor.shape.begin());
  made.tensor.data = data;
}

Ort::Value& Inputs::new_strings(Made& made, const AskedInput& input, std::size_t count, std::size_t characters) {
  const std::size_t bytes = string_tensor_bytes(count, characters);
  this->count(bytes);
  request_.input_bytes += bytes;
  made.value = new_tensor(made.declared->type, input.shape.sizes);
  return made.value;
}

}  // namespace

void require_datatype(const Declared& declared) {
  if (declared.datatype.empty()) {
    throw Refused(501,
                  "the protocol has no datatype for " + repr(declared.name) +
                      " of this model: ask for its other outputs by name, or export a classifier with zipmap=False");
  }
}

void make_inputs(InferRequest& request, const Asked& asked) { Inputs(request, asked).make(); }

}  // namespace ortmulti::serve
