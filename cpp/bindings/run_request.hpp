#pragma once

#include <onnxruntime_cxx_api.h>
#include <pybind11/pybind11.h>

#include <memory>
#include <utility>
#include <vector>

#include "bindings/containers.hpp"
#include "core/ort/session.hpp"
#include "core/ort/value.hpp"
#include "core/pool/padding.hpp"
#include "core/pool/request.hpp"

namespace ortmulti::bindings {

/// What one run needs, converted from Python. It is made and freed with the GIL.
class RunRequest {
 public:
  /// `input_feed`: a mapping of names to values; `output_names`: a sequence of str, or None. `padding`: makes a mask
  /// that lacks, whose name is its own. Throws Error.
  RunRequest(const Session& session, const pybind11::object& output_names, const pybind11::object& input_feed,
             const Padding* padding = nullptr);

  /// The feed as it is now, for a request that is made of it later. Throws Error for what is no mapping.
  static pybind11::dict copy_feed(const pybind11::object& input_feed);

  /// Needs no GIL.
  std::vector<Ort::Value> run(Session& session, const Ort::RunOptions& options) const {
    return session.run(options, inputs_, output_names_);
  }

  pybind11::list to_python(std::vector<Ort::Value> outputs) const;
  /// Copies of the rows.
  pybind11::list to_python(const JointRows& rows) const;
  /// The outputs as values, where they lie; `owners`: what their memory belongs to, or empty.
  pybind11::list to_values(std::vector<Ort::Value> outputs, std::vector<std::shared_ptr<const void>> owners) const;

  // For who runs it otherwise: the inputs lie in memory that this object keeps.
  std::vector<const char*> take_output_names() noexcept { return std::move(output_names_); }
  RunInputs take_inputs() noexcept { return std::move(inputs_); }

 private:
  void add(const ValueInfo& declared, pybind11::handle object);
  void choose_outputs(const Session& session, const pybind11::object& names);

  InputMemory memory_;
  RunInputs inputs_;  // freed before what it lies in
  std::vector<const ValueInfo*> outputs_;
  std::vector<const char*> output_names_;
};

}  // namespace ortmulti::bindings
