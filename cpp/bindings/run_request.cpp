#include "bindings/run_request.hpp"

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "bindings/gil.hpp"
#include "bindings/python_value.hpp"
#include "bindings/tensors.hpp"
#include "bindings/text.hpp"
#include "core/base/error.hpp"
#include "core/ort/io_binding.hpp"

namespace ortmulti::bindings {
namespace {

std::string_view text_of(py::handle object, const char* what) {
  if (PyUnicode_Check(object.ptr()) == 0) {
    throw Error(ErrorKind::invalid_type, std::string(what) + " must be a str, not " + class_name(object));
  }
  return utf8_of(object);
}

// Bytes of a mask that are filled sooner than the GIL would be back.
constexpr std::size_t max_bytes_with_gil = 64U << 10U;

bool is_mapping(const py::object& object) {
  return py::isinstance(object, py::module_::import("collections.abc").attr("Mapping"));
}

py::dict to_feed(const py::object& feed) {
  if (PyDict_Check(feed.ptr()) != 0) {
    return py::reinterpret_borrow<py::dict>(feed);
  }
  if (!is_mapping(feed)) {
    throw Error(ErrorKind::invalid_type, "input_feed must be a dict of the inputs' names and values, not " +
                                             class_name(feed) + ": for example {'input': array}");
  }
  return py::dict(feed);
}

}  // namespace

RunRequest::RunRequest(const Session& session, const py::object& output_names, const py::object& input_feed,
                       const Padding* padding) {
  const py::dict feed = to_feed(input_feed);
  const std::size_t count = feed.size();
  inputs_.reserve(count);
  memory_.arrays.reserve(count);
  for (const auto& [key, object] : feed) {
    add(session.input(text_of(key, "the name of an input")), object);
  }
  if (padding != nullptr) {
    if (const auto shape = padding->mask_shape(inputs_); !shape.empty()) {
      std::optional<ReleaseGil> nogil;
      if (tensor_bytes(padding->mask_type, shape) > max_bytes_with_gil) {
        nogil.emplace();
      }
      padding->add_mask(inputs_, shape);
    }
  }
  if (count < session.inputs().size()) {
    session.check_complete(inputs_.names());
  }
  choose_outputs(session, output_names);
}

py::dict RunRequest::copy_feed(const py::object& input_feed) {
  const py::dict feed = to_feed(input_feed);
  return owned<py::dict>(PyDict_Copy(feed.ptr()));
}

void RunRequest::add(const ValueInfo& declared, py::handle object) {
  if (std::shared_ptr<const Value> given = value_in(object)) {
    check_input(declared, *given);
    inputs_.add(declared.name.c_str(), *given);
    memory_.values.emplace_back(std::move(given));
    return;
  }
  if (declared.is_tensor) {
    Input input = to_input(declared, object);
    if (input.is_value()) {
      inputs_.add(declared.name.c_str(), std::move(input.value));
    } else {
      inputs_.add(declared.name.c_str(), input.tensor);
    }
    if (input.array) {
      memory_.arrays.push_back(std::move(input.array));
    }
  } else if (Ort::Value value = to_value(declared, object, memory_)) {
    inputs_.add(declared.name.c_str(), std::move(value));
  }
}

py::list RunRequest::to_python(std::vector<Ort::Value> outputs) const {
  py::list results(outputs.size());
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    results[i] = bindings::to_python(std::move(outputs[i]), outputs_[i]->name, memory_);
  }
  return results;
}

py::list RunRequest::to_python(const JointRows& rows) const {
  const auto& tensors = rows.outputs->tensors;
  py::list results(tensors.size());
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const JointOutputs::Output& tensor = tensors[i];
    py::object array = copied_rows(tensor.type, tensor.shape, rows.count, tensor.data + rows.first * tensor.row_bytes,
                                   rows.count * tensor.row_bytes, outputs_[i]->name);
    PyList_SET_ITEM(results.ptr(), static_cast<py::ssize_t>(i), array.release().ptr());
  }
  return results;
}

py::list RunRequest::to_values(std::vector<Ort::Value> outputs, std::vector<std::shared_ptr<const void>> owners) const {
  owners.resize(outputs.size());
  for (auto& owner : owners) {
    owner = owner ? freed_without_gil(std::move(owner)) : nullptr;
  }
  py::list results(outputs.size());
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const bool in_input = outputs[i] != nullptr && outputs[i].HasValue() && outputs[i].IsTensor() && !owners[i] &&
                          memory_.has(outputs[i]);
    auto value = std::make_shared<const Value>(std::move(outputs[i]), std::move(owners[i]));
    if (in_input) {
      const ReleaseGil nogil;
      value = value->copied_to(value->device());
    }
    results[i] = freed_without_gil(std::move(value));
  }
  return results;
}

void RunRequest::choose_outputs(const Session& session, const py::object& names) {
  if (!names.is_none()) {
    if (PyList_Check(names.ptr()) == 0 && (PyUnicode_Check(names.ptr()) != 0 || PyBytes_Check(names.ptr()) != 0 ||
                                           !py::isinstance<py::iterable>(names) || is_mapping(names))) {
      throw Error(ErrorKind::invalid_type,
                  "output_names must be a list or another iterable of str, or None for all outputs, not " +
                      class_name(names) + ": for example ['output']");
    }
    for (const py::handle item : names) {
      outputs_.push_back(&session.output(text_of(item, "the name of an output")));
    }
  }
  if (outputs_.empty()) {
    outputs_.reserve(session.outputs().size());
    for (const ValueInfo& output : session.outputs()) {
      outputs_.push_back(&output);
    }
  }
  output_names_.reserve(outputs_.size());
  for (const ValueInfo* output : outputs_) {
    output_names_.push_back(output->name.c_str());
  }
}

}  // namespace ortmulti::bindings
