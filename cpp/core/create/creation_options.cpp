#include <algorithm>
#include <mutex>
#include <string>

#include "core/base/cpu_affinity.hpp"
#include "core/base/error.hpp"
#include "core/base/text.hpp"
#include "core/create/creation.hpp"
#include "core/ort/operators.hpp"

namespace ortmulti {

SessionOptions Creation::options_for(const Device& device) const {
  SessionOptions options = request_.options;
  if (device.is_cuda()) {
    // The GPU computes; pools of idle CPU threads would only cost memory and start-up.
    if (options.intra_op_num_threads == 0) {
      options.intra_op_num_threads = 1;
    }
    if (options.inter_op_num_threads == 0) {
      options.inter_op_num_threads = 1;
    }
  } else if (options.intra_op_num_threads == 0) {
    const auto beside = request_.one_session_each ? 1 : std::ranges::count(devices_, device);
    options.intra_op_num_threads = threads_per_session(static_cast<int>(beside));
  }
  if (options.threads) {  // as many as ONNX Runtime would make: they are there before it asks for them
    for (int* number : {&options.intra_op_num_threads, &options.inter_op_num_threads}) {
      *number = *number == 0 ? usable_cores() : *number;
    }
  }
  return options;
}

const ModelIndex& Creation::model_index() {
  std::call_once(indexed_, [this] {
    const ScopedSpan span(timeline_.get(), "index model");
    try {
      index_ = index_model(*request_.model.source());
    } catch (const Error&) {  // NOLINT(bugprone-empty-catch): ONNX Runtime says what is wrong with the model
    }
  });
  return index_;
}

std::string Creation::why_not_one_session() {
  if (request_.options.enable_profiling) {
    return "each session writes a profile of its own";
  }
  if (!request_.options.optimized_model_filepath.empty()) {
    return "optimized_model_filepath has each session write its model";
  }
  const std::string stateful = find_stateful_operator(model_index().operators);
  return stateful.empty() ? "" : "operator " + stateful + " may keep something from run to run";
}

void Creation::check_memory(const Device& device) {
  CudaStartup& startup = CudaStartup::instance();
  startup.make_current(device.index, timeline_.get());
  const CudaStartup::Memory memory = startup.memory(device.index);
  const auto sessions = static_cast<std::uint64_t>(std::ranges::count(devices_, device));
  const std::uint64_t each = total_bytes(model_index().initializers);
  if (each <= memory.free / sessions) {
    return;
  }
  throw Error(ErrorKind::out_of_memory, "the weights of " + request_.model.describe() + " take " + megabytes(each) +
                                            " in each of " + std::to_string(sessions) + " sessions on " +
                                            to_string(device) + ", which has " + megabytes(memory.free) + " free of " +
                                            megabytes(memory.total));
}

}  // namespace ortmulti
