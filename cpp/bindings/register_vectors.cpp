#include <pybind11/stl.h>

#include <cstddef>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings/gil.hpp"
#include "bindings/json_rows.hpp"
#include "bindings/registrations.hpp"
#include "bindings/token_block.hpp"
#include "core/serve/vector_calls.hpp"

namespace ortmulti::bindings {
namespace {

using namespace py::literals;  // NOLINT(google-build-using-namespace): "name"_a

using serve::VectorForm;
using serve::VectorGroup;
using serve::VectorWish;

/// The texts of a group. Each of its requests is answered without Python once its rows are there.
class VectorBlock : public TokenBlock {
 public:
  VectorBlock(std::shared_ptr<const TokenModel> model, std::size_t skip, std::shared_ptr<VectorGroup> group,
              VectorForm form)
      : TokenBlock(std::move(model), skip), group_(std::move(group)), form_(std::move(form)) {}

 private:
  // NOLINTNEXTLINE(bugprone-exception-escape): out of memory ends the process
  void answered(const std::vector<std::size_t>& rows) noexcept override {
    if (auto members = group_->note(rows); !members.empty()) {
      group_->work([block = std::static_pointer_cast<VectorBlock>(shared_from_this()), members = std::move(members)] {
        try {
          block->group_->answer(members, *block, block->form_);
        } catch (const std::exception&) {  // there is no memory
          block->group_->leave();
        }
      });
    }
  }
  void complete() noexcept override {  // NOLINT(bugprone-exception-escape): out of memory ends the process
    if (lengths().empty()) {
      group_->fail(errors().front().second);
    }
    TokenBlock::complete();
  }

  const std::shared_ptr<VectorGroup> group_;
  const VectorForm form_;
};

std::shared_ptr<TokenBlock> make_block(const std::shared_ptr<VectorGroup>& group,
                                       const std::shared_ptr<TokenModel>& model, std::size_t skip, std::string name,
                                       bool normalize, std::size_t dimensions, std::string head, std::string tail,
                                       const Around& around) {
  VectorForm form{.name = std::move(name),
                  .normalize = normalize,
                  .dimensions = dimensions,
                  .headers = {{"content-type", "application/json"}},
                  .head = std::move(head),
                  .tail = std::move(tail),
                  .before = std::get<0>(around),
                  .behind_number = std::get<1>(around),
                  .behind = std::get<2>(around)};
  const ReleaseGil nogil;
  auto block = std::make_shared<VectorBlock>(model, skip, group, std::move(form));
  group->run_by(block);
  return freed_without_gil(std::shared_ptr<TokenBlock>(std::move(block)));
}

py::list take_texts(VectorGroup& group) {
  py::list texts;
  for (const std::string& text : group.take_texts()) {
    texts.append(py::str(text));
  }
  return texts;
}

// False: longer texts are refused.
std::optional<std::string> cut_of(const VectorWish& wish) {
  using Cut = VectorWish::Cut;
  return wish.cut == Cut::none ? std::nullopt : std::optional<std::string>(wish.cut == Cut::left ? "left" : "right");
}

}  // namespace

void register_vectors(py::module_& module) {
  py::class_<VectorGroup, std::shared_ptr<VectorGroup>>(module, "VectorGroup")
      .def_property_readonly("path", [](const VectorGroup& group) { return group.wish().path; })
      .def_property_readonly("model", [](const VectorGroup& group) { return group.wish().model; })
      .def_property_readonly("prompt", [](const VectorGroup& group) { return group.wish().prompt; })
      .def_property_readonly("dimensions", [](const VectorGroup& group) { return group.wish().dimensions; })
      .def_property_readonly("normalize", [](const VectorGroup& group) { return group.wish().normalize; })
      .def_property_readonly("truncate", [](const VectorGroup& group) { return cut_of(group.wish()); })
      .def_property_readonly("base64", [](const VectorGroup& group) { return group.wish().base64; })
      .def("reserve", &VectorGroup::reserve, "bytes_a_text"_a, Nogil())
      .def("take_texts", &take_texts)
      .def("block", &make_block, "model"_a, "skip"_a, "name"_a, "normalize"_a, "dimensions"_a, "head"_a, "tail"_a,
           "around"_a)
      .def("leave", &VectorGroup::leave, Nogil());
}

}  // namespace ortmulti::bindings
