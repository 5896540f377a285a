#pragma once

#include <onnxruntime_cxx_api.h>
#include <pybind11/pybind11.h>

#include <utility>
#include <vector>

#include "core/session.hpp"

namespace ortmulti::bindings {

/// What one run needs, converted from Python. It is made and freed with the GIL.
class RunRequest {
 public:
  /// `input_feed`: a mapping of names to values; `output_names`: a sequence of str, or None. Throws Error.
  RunRequest(const Session& session, const pybind11::object& output_names, const pybind11::object& input_feed);

  /// Needs no GIL.
  std::vector<Ort::Value> run(Session& session, const Ort::RunOptions& options) const;

  pybind11::list to_python(std::vector<Ort::Value> outputs) const;

  // For who runs it otherwise: the names are this object's, the values lie over arrays that it keeps.
  const std::vector<const char*>& input_names() const noexcept { return input_names_; }
  const std::vector<const char*>& output_names() const noexcept { return output_names_; }
  std::vector<Ort::Value> take_values() noexcept { return std::move(values_); }

 private:
  void choose_outputs(const Session& session, const pybind11::object& names);

  std::vector<const char*> input_names_;
  std::vector<Ort::Value> values_;
  std::vector<pybind11::object> arrays_;
  std::vector<const ValueInfo*> outputs_;
  std::vector<const char*> output_names_;
};

}  // namespace ortmulti::bindings
