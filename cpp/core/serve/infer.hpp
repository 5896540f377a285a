#pragma once

#include <onnxruntime_cxx_api.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/mutex.hpp"
#include "core/pool/padding.hpp"
#include "core/pool/pool.hpp"
#include "core/pool/request.hpp"
#include "core/serve/answer_size.hpp"
#include "core/serve/call.hpp"

namespace ortmulti::serve {

/// An input or output of a model as the protocol names it.
struct Declared {
  std::string name;
  std::string datatype;  ///< "FP32"; empty: the protocol has no word for it.
  ONNXTensorElementDataType type = ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED;
  std::vector<std::int64_t> shape;  ///< -1: any size.
};

/// A model as clients may ask for it. It does not keep the pool.
struct ServedModel {
  std::string name;
  std::string version;  ///< As clients see it: "1" for a model without.
  std::weak_ptr<Pool> pool;
  std::vector<Declared> inputs;
  std::vector<Declared> optional;  ///< Initializers that may be given.
  std::vector<Declared> outputs;
  bool joins = false;        ///< Requests run together.
  bool counts_rows = false;  ///< ... along the first axis.
  bool recurrent = false;    ///< Empty inputs would end the process.
  std::size_t max_rows = 0;  ///< Of a request; 0: any number.
  std::shared_ptr<const Padding> padding;
  std::optional<double> timeout;  ///< Seconds of a request without one.
  bool may_override = true;       ///< A request may have an earlier deadline.
  int priority = 1;               ///< The protocol's, of a request without one.

  // For statistics.
  struct Counts {
    std::atomic<std::uint64_t> inferences{0};  ///< Rows, where they are joined; else requests.
    std::atomic<std::int64_t> last{0};         ///< Milliseconds since 1970 of the last answer.
  };
  std::shared_ptr<Counts> counts = std::make_shared<Counts>();
  mutable AnswerSize answer_size;  ///< Of outputs.
  mutable AnswerSize text_size;    ///< Of those that are JSON, as text.
  /// The average time of the last runs on the CPU. 0: none is known.
  mutable std::atomic<std::chrono::nanoseconds> run_time{};
  mutable std::atomic<int> surprises{0};  ///< Runs that took long although they were expected to be short.
};

/// The models that infer is answered for without Python. Any thread may use it.
class ServedModels : NonCopyable {
 public:
  /// In the place of one of the same name, with which it has its counts in common: requests of that one may still run.
  void put(const std::shared_ptr<ServedModel>& model);
  /// Null: there is none.
  std::shared_ptr<const ServedModel> find(std::string_view name) const;

 private:
  mutable Mutex mutex_;
  std::map<std::string, std::shared_ptr<const ServedModel>, std::less<>> models_ ORTMULTI_GUARDED_BY(mutex_);
};

/// A call of infer that a pool runs. Inputs are views of the call's body where their alignment allows that.
class InferRequest : public Request {
 public:
  struct Output {
    const Declared* declared;
    bool binary;  ///< Over HTTP; else it is JSON.
  };
  /// Memory that inputs lie in.
  struct Memory {
    struct Block {
      std::shared_ptr<std::byte[]> memory;
      std::size_t size = 0;
    };
    std::vector<Block> blocks;
    Block body;

    bool has(const void* address) const noexcept;
  };

  InferRequest(std::shared_ptr<Call> of, std::shared_ptr<const ServedModel> asked)
      : call(std::move(of)), model(std::move(asked)), answer_bytes(call->bytes.another()) {}
  ~InferRequest() override { inputs = RunInputs(); }  // before what they lie in

  /// Throws Error where there is no memory for the answer: others were computed since it was submitted.
  void prepare(const std::shared_ptr<Session>& session) override;
  /// Whether there is memory for its answer, as far as one can tell.
  [[nodiscard]] bool expect_answer() noexcept;
  /// Counts its answer, which is there now. Without memory for it, it is freed.
  void count_answer() noexcept;

  const std::shared_ptr<Call> call;
  const std::shared_ptr<const ServedModel> model;
  std::string id;
  std::vector<Output> wanted;
  std::size_t row_count = 1;      ///< As statistics count it.
  bool deadline_of_call = false;  ///< The deadline is that of gRPC's call, not that of the request in it.
  std::shared_ptr<Memory> memory = std::make_shared<Memory>();
  std::size_t counted = 0;      ///< Bytes of the call before the memory of tensors was counted there.
  std::size_t input_bytes = 0;  ///< Of tensors.
  /// What the answer is expected to take, and then what it takes; with its text.
  Admission::Bytes answer_bytes;
  std::size_t text_bytes = 0;               ///< Of these, those of text, which is not written yet.
  std::atomic<bool> answer_dropped{false};  ///< There was no memory for it.
};

/// What a call of infer asks for. Of a message that cannot be read all of it is empty.
struct Target {
  std::string model;
  std::string version;  ///< May be empty.
  std::string id;       ///< The request's, over gRPC.
};
/// The model that a call of infer names. Nothing for other calls.
std::optional<Target> target_of(const Call& call);

/// What became of a call: one of these.
struct Begun {
  std::shared_ptr<InferRequest> request;  ///< The pool has it, and its receiver gets it.
  bool ended = false;                     ///< ... but not this one: it has ended already.
  std::unique_ptr<Reply> reply;           ///< It is refused.
  bool not_mine = false;                  ///< Python is to answer it.
};

/// Reads a call of infer and has the pool of its model run it, or runs it here where that takes less than to hand it
/// over. `receiver` may be called before this returns, with this
/// request or with others. It takes a time for JSON: some 50 ns a byte.
Begun begin_infer(const std::shared_ptr<Call>& call, const ServedModels& models, const Limits& limits,
                  const std::shared_ptr<Receiver>& receiver);

/// The answer of a request that its receiver got. Nothing: its pool was closed before it ran, and Python is to answer
/// the call after all. Called once.
std::optional<Reply> reply_of(InferRequest& request);

/// Counts the answers of requests as they are computed, and hands them on: others are computed meanwhile.
class CountedAnswers : public Receiver {
 public:
  explicit CountedAnswers(std::shared_ptr<Receiver> receiver) : receiver_(std::move(receiver)) {}
  void receive(Requests finished) noexcept override;

 private:
  const std::shared_ptr<Receiver> receiver_;
};

/// What a string of these bytes takes as an element of a tensor: the string itself, and memory of its own where it is
/// long.
std::size_t string_tensor_bytes(std::size_t count, std::size_t characters) noexcept;

constexpr const char* no_memory_for_answers = "the server has no memory left for answers, try again later";

/// Nobody waits for the answer any more; the receiver gets the request all the same.
void cancel(const std::shared_ptr<InferRequest>& request);

/// The refusal() of a call. A call of a stream, which goes on, gets an answer with the error. `id`: the request's.
Reply refused(const Call& call, int status, std::string_view text, std::string_view id = {});

}  // namespace ortmulti::serve
