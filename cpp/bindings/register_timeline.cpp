#include <pybind11/stl.h>

#include <utility>
#include <vector>

#include "bindings/gil.hpp"
#include "bindings/registrations.hpp"
#include "core/base/timeline.hpp"

namespace py = pybind11;

namespace ortmulti::bindings {

void register_timeline(py::module_& module) {
  using Nogil = py::call_guard<ReleaseGil>;
  py::class_<Timeline, std::shared_ptr<Timeline>>(module, "Timeline")
      .def(py::init<>())
      .def(
          "extend",
          [](Timeline& timeline, const Timeline& other) {
            for (Span& span : other.spans()) {
              timeline.add(std::move(span));
            }
          },
          Nogil())
      .def(
          "add",
          [](Timeline& timeline, const std::string& name, std::int64_t start_ns, std::int64_t end_ns,
             const std::string& device) { timeline.add(name, start_ns, end_ns, device); },
          Nogil())
      .def("spans", [](const Timeline& timeline) {
        py::list list;
        const std::vector<Span> spans = without_gil([&] { return timeline.spans(); });
        for (const Span& span : spans) {
          list.append(py::make_tuple(span.name, span.start_ns, span.end_ns, span.thread, span.device));
        }
        return list;
      });
}

}  // namespace ortmulti::bindings
