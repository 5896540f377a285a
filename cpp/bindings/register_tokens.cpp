#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bindings/errors.hpp"
#include "bindings/gil.hpp"
#include "bindings/registrations.hpp"
#include "bindings/signals.hpp"
#include "bindings/token_block.hpp"
#include "core/base/error.hpp"
#include "core/pool/token_rows.hpp"

namespace ortmulti::bindings {
namespace {

using namespace py::literals;  // NOLINT(google-build-using-namespace): "name"_a

// The value with this name.
template <typename Value>
Value named(const std::string& name, const std::vector<std::pair<std::string, Value>>& values, const char* what) {
  for (const auto& [known, value] : values) {
    if (known == name) {
      return value;
    }
  }
  throw Error(ErrorKind::invalid_argument, "there is no " + std::string(what) + " '" + name + "'");
}

// An input is its name and ONNX Runtime's number of its element type.
std::shared_ptr<TokenModel> make_model(const std::vector<std::pair<std::string, int>>& inputs, std::string output,
                                       const std::vector<std::string>& pooling) {
  using Kind = TokenModel::Kind;
  using Pooling = TokenModel::Pooling;
  auto model = std::make_shared<TokenModel>();
  for (const auto& [name, type] : inputs) {
    const Kind kind = named<Kind>(name,
                                  {{"input_ids", Kind::ids},
                                   {"attention_mask", Kind::mask},
                                   {"token_type_ids", Kind::types},
                                   {"position_ids", Kind::positions}},
                                  "input of tokens");
    const auto element = static_cast<ONNXTensorElementDataType>(type);
    if (element != ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64 && element != ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32) {
      throw Error(ErrorKind::invalid_argument,
                  "the model's input '" + name + "' has another type than int64 and int32, which tokens have");
    }
    model->inputs.push_back({name, kind, element});
  }
  model->output = std::move(output);
  for (const std::string& each : pooling) {
    model->pooling.push_back(named<Pooling>(each,
                                            {{"cls", Pooling::cls},
                                             {"last", Pooling::last},
                                             {"max", Pooling::max},
                                             {"mean", Pooling::mean},
                                             {"mean_sqrt_len", Pooling::mean_sqrt_len},
                                             {"weightedmean", Pooling::weightedmean}},
                                            "pooling"));
  }
  return model;
}

// Brings the rows of a table to the length 1, in place.
void normalize(const py::array_t<float, py::array::c_style>& given) {
  py::array_t<float, py::array::c_style> table = given;
  float* row = table.mutable_data();  // throws where it is read-only
  const auto width = static_cast<std::size_t>(given.ndim() == 0 ? 0 : given.shape(given.ndim() - 1));
  const auto size = static_cast<std::size_t>(given.size());
  const ReleaseGil nogil;
  normalize_rows({row, size}, width);
}

}  // namespace

void register_tokens(py::module_& module) {
  module.def("normalize", &normalize, "table"_a.noconvert());
  py::class_<TokenModel, std::shared_ptr<TokenModel>>(module, "TokenModel")
      .def(py::init(&make_model), "inputs"_a, "output"_a, "pooling"_a);
  py::class_<TokenBlock, std::shared_ptr<TokenBlock>>(module, "TokenBlock")
      .def(py::init([](const std::shared_ptr<TokenModel>& model, std::size_t skip) {
             return std::make_shared<TokenBlock>(model, skip);
           }),
           "model"_a, "skip"_a)
      .def("fill", &TokenBlock::fill, "items"_a, "call"_a, "timeout"_a, "begin"_a)
      .def_property_readonly("lengths", [](const TokenBlock& self) { return self.lengths(); })
      .def("fail", &TokenBlock::fail, "error"_a, Nogil())
      .def("arrived", [](TokenBlock& self) { return self.arrival().arrived(); })
      .def("wait", [](TokenBlock& self) { wait_until([&](auto until) { return self.arrival().wait(until); }); })
      .def("take", &TokenBlock::take)
      .def("follow", &TokenBlock::follow, "follower"_a)
      .def("future", &TokenBlock::future)
      .def(
          "end", [](TokenBlock& self) { self.cancel(); }, Nogil())
      .def("cancel", [](TokenBlock& self) {
        self.forget_future();
        const ReleaseGil nogil;
        self.arrival().abandon();
        self.cancel();
      });
}

}  // namespace ortmulti::bindings
