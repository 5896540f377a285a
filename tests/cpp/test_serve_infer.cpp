#include <gtest/gtest.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/onnx/element_types.hpp"
#include "core/onnx/wire.hpp"
#include "core/pool/batching.hpp"
#include "core/pool/runners.hpp"
#include "core/serve/infer.hpp"
#include "fake_runner.hpp"
#include "test_support.hpp"

namespace ortmulti::tests {
namespace {

using namespace serve;
using namespace std::chrono_literals;

std::vector<Declared> declared(const std::vector<ValueInfo>& values) {
  std::vector<Declared> all;
  for (const ValueInfo& value : values) {
    const char* const datatype = value.is_tensor ? find_element_type(value.element_type)->protocol : "";
    all.push_back({value.name, datatype, value.element_type, value.shape});
  }
  return all;
}

// y = Identity(x), of an element type and with one open dimension.
std::string identity_model(ONNXTensorElementDataType type) {
  const auto number = static_cast<std::uint64_t>(find_element_type(type)->onnx);
  const std::string shape = wire_field(2, wire_field(1, wire_field(2, "n")));
  const std::string value = wire_field(2, wire_field(1, wire_field(1, number) + shape));
  const std::string node = wire_field(1, "x") + wire_field(2, "y") + wire_field(4, "Identity");
  const std::string graph = wire_field(1, node) + wire_field(2, "graph") + wire_field(11, wire_field(1, "x") + value) +
                            wire_field(12, wire_field(1, "y") + value);
  return wire_field(1, 8) + wire_field(7, graph) + wire_field(8, wire_field(2, 16));
}

template <typename Number>
std::string bytes_of(const std::vector<Number>& numbers) {
  return {reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(Number)};
}

class ServeInfer : public RealSessions {
 protected:
  void TearDown() override {
    for (const auto& pool : pools_) {
      pool->close(true);
    }
  }

  std::shared_ptr<ServedModel> serve(const std::string& name, const std::shared_ptr<Session>& session,
                                     const Pool::Options& options = {}) {
    const auto pool = Pool::make(options);
    add_session(*pool, session, {}, {});
    auto model = made(name, pool);
    model->inputs = declared(session->inputs());
    model->outputs = declared(session->outputs());
    model->joins = model->counts_rows = options.batching.enabled();
    models.put(model);
    return model;
  }
  std::shared_ptr<ServedModel> serve_add(const Pool::Options& options = {}) {
    return serve("add", make_session("add", with_threads(1)), options);
  }
  std::shared_ptr<ServedModel> serve_identity(ONNXTensorElementDataType type) {
    const auto bytes = std::make_shared<const std::string>(identity_model(type));
    return serve("same", std::make_shared<Session>(runtime(), model_of(bytes), with_threads(1), std::vector<Provider>(),
                                                   nullptr));
  }
  // A model whose runs end when the runner says so.
  std::shared_ptr<FakeRunner> serve_held(std::optional<std::size_t> max_waiting = std::nullopt) {
    const auto pool = Pool::make({max_waiting, {}});
    const auto runner = std::make_shared<FakeRunner>(Device::cpu());
    pool->add({runner});
    runner->hold();
    const auto model = made("add", pool);
    model->inputs = {{"x", "FP32", ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, {-1, 3}}};
    model->outputs = {{"sum", "FP32", ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, {-1, 3}}};
    models.put(model);
    return runner;
  }

  std::shared_ptr<Call> http(const std::string& body, std::size_t json = 0, const std::string& model = "add") {
    auto call = std::make_shared<Call>(Protocol::http, buffers, admission);
    call->method = "POST";
    call->path = "/v2/models/" + model + "/infer";
    call->peer = "127.0.0.1 1";
    call->body.append(body);
    if (json != 0) {
      call->headers = {{"inference-header-content-length", std::to_string(json)}};
    }
    return call;
  }
  // With one binary input, which begins as far behind an aligned address.
  std::shared_ptr<Call> binary(const std::string& data, const std::string& shape, const std::string& datatype = "FP32",
                               std::size_t offset = 0, const std::string& model = "add",
                               const std::string& more = R"(,"parameters":{"binary_data_output":true})") {
    std::string head = R"({"inputs":[{"name":"x","shape":)" + shape + R"(,"datatype":")" + datatype +
                       R"(","parameters":{"binary_data_size":)" + std::to_string(data.size()) + "}}]" + more + "}";
    while (head.size() % 64 != offset) {
      head += ' ';
    }
    return http(head + data, head.size(), model);
  }
  std::shared_ptr<Call> grpc(const std::string& message, bool streamed = false) {
    auto call = std::make_shared<Call>(Protocol::grpc, buffers, admission);
    call->path =
        streamed ? "/inference.GRPCInferenceService/ModelStreamInfer" : "/inference.GRPCInferenceService/ModelInfer";
    call->streamed = streamed;
    call->body.append(message);
    return call;
  }

  Begun begin(const std::shared_ptr<Call>& call) { return begin_infer(call, models, limits, receiver); }
  std::shared_ptr<InferRequest> finished() {
    const auto request = answers.wait_for(++taken_).back();
    return std::static_pointer_cast<InferRequest>(request);
  }
  Reply ask(const std::shared_ptr<Call>& call) {
    Begun begun = begin(call);
    EXPECT_FALSE(begun.not_mine);
    return begun.reply ? std::move(*begun.reply) : answer_of(begun.ended ? *begun.request : *finished());
  }
  static Reply answer_of(InferRequest& request) {
    auto reply = reply_of(request);
    EXPECT_TRUE(reply);
    return reply ? *std::move(reply) : Reply{};
  }
  static std::string text(const Reply& reply) {
    std::string all;
    for (const Piece& piece : reply.body) {
      all += piece.bytes;
    }
    return all.empty() ? reply.message : all;
  }
  // The answer's binary data.
  static std::string data(const Reply& reply) {
    const std::string* const size = find(reply.headers, "inference-header-content-length");
    return size == nullptr ? "none" : text(reply).substr(std::stoul(*size));
  }

  Limits limits;
  BufferPool buffers{1U << 20U};
  Admission admission{limits};
  ServedModels models;
  Answers answers;
  std::shared_ptr<Receiver> receiver = answers.request()->receiver;

 private:
  std::shared_ptr<ServedModel> made(const std::string& name, const std::shared_ptr<Pool>& pool) {
    pools_.push_back(pool);
    auto model = std::make_shared<ServedModel>();
    model->name = name;
    model->version = "3";
    model->pool = pool;
    return model;
  }

  std::vector<std::shared_ptr<Pool>> pools_;
  std::size_t taken_ = 0;
};

const std::string three = bytes_of<float>({10, 20, 30});  // NOLINT(bugprone-throwing-static-initialization): in a test
const std::string sums = bytes_of<float>({11, 22, 33});   // NOLINT(bugprone-throwing-static-initialization): as above
constexpr const char* json_request =
    R"({"id":"7","outputs":[{"name":"sum"}],"inputs":[{"data":[[10,20.0,30]],"name":"x","shape":[1,3],"datatype":"FP32"}]})";

TEST_F(ServeInfer, AnswersJson) {
  const auto model = serve_add();
  const Reply reply = ask(http(json_request));
  EXPECT_EQ(reply.status, 200);
  EXPECT_EQ(reply.headers, (Headers{{"content-type", "application/json"}}));
  EXPECT_EQ(text(reply), R"({"model_name":"add","model_version":"3","outputs":[{"name":"sum","datatype":"FP32",)"
                         R"("shape":[1,3],"data":[11.0,22.0,33.0]}],"id":"7"})");
  EXPECT_EQ(model->counts->inferences, 1U);
  EXPECT_GT(model->counts->last, 0);
}

TEST_F(ServeInfer, TensorsAreViewsOfTheBodyWhereTheyMayBe) {
  serve_add();
  for (const std::size_t offset : {0U, 32U, 4U, 1U}) {
    const auto call = binary(three, "[1,3]", "FP32", offset);
    const Begun begun = begin(call);
    const auto request = finished();
    ASSERT_EQ(begun.request, request);
    EXPECT_EQ(request->memory->blocks.size(), offset == 0 ? 0U : 1U);
    EXPECT_EQ(data(answer_of(*request)), sums + bytes_of<float>({9, 18, 27}));
  }
}

TEST_F(ServeInfer, ShortRunsAreRunHere) {
  const auto model = serve_add();
  EXPECT_EQ(model->run_time.load(), 0ns);
  EXPECT_EQ(ask(http(json_request)).status, 200);
  EXPECT_GT(model->run_time.load(), 0ns);
  model->run_time = 1us;
  Begun begun = begin(http(json_request));
  while (!begun.ended) {  // the session may not be idle again yet
    ASSERT_EQ(answer_of(*finished()).status, 200);
    model->run_time = 1us;
    begun = begin(http(json_request));
  }
  EXPECT_NE(text(answer_of(*begun.request)).find("[11.0,22.0,33.0]"), std::string::npos);
  model->run_time = 1us;
  model->surprises = 3;
  EXPECT_FALSE(begin(http(json_request)).ended);
  EXPECT_EQ(answer_of(*finished()).status, 200);
  model->surprises = 0;
  model->run_time = 1us;
  const auto large = http(std::string(std::size_t{64} << 10U, ' ') + json_request);
  EXPECT_FALSE(begin(large).ended);
  EXPECT_EQ(answer_of(*finished()).status, 200);
  model->run_time = 1s;
  EXPECT_FALSE(begin(http(json_request)).ended);
  EXPECT_EQ(answer_of(*finished()).status, 200);
  EXPECT_LT(model->run_time.load(), 1s);
  const auto before = model->run_time.load();
  EXPECT_EQ(ask(http("{}")).status, 400);
  EXPECT_EQ(model->run_time.load(), before);
}

TEST_F(ServeInfer, LargeOutputsAreSentFromWhereTheyLie) {
  serve("wide", make_session("wide", with_threads(1)));
  const std::vector<float> ones(std::size_t{64} * 256, 1);
  Reply reply = ask(binary(bytes_of(ones), "[64,256]", "FP32", 0, "wide"));
  ASSERT_EQ(reply.body.size(), 2U);
  EXPECT_EQ(reply.body[1].bytes.size(), ones.size() * sizeof(float));
  EXPECT_EQ(data(reply), bytes_of(std::vector<float>(ones.size(), 2)));
  EXPECT_EQ(reply.body[1].owner.use_count(), 1) << "the request is not kept";
}

TEST_F(ServeInfer, EveryTypeGoesInAndOut) {
  const std::pair<const char*, std::string> types[] = {
      {"BOOL", "\x01\x00"},
      {"INT8", "\x80\x7F"},
      {"INT16", "1234"},
      {"INT32", "12345678"},
      {"INT64", "0123456789abcdef"},
      {"UINT8", "ab"},
      {"UINT16", "1234"},
      {"UINT32", "12345678"},
      {"UINT64", "0123456789abcdef"},
      {"FP16", "\x01\x3C\x01\x80"},
      {"BF16", "\x80\x3F\x01\x80"},
      {"FP32", "12345678"},
      {"FP64", "0123456789abcdef"},
      {"BYTES", std::string("\x00\x00\x00\x00\x02\x00\x00\x00\xC3\xBC", 10)}};
  for (const ElementType& type : element_types()) {
    for (auto [datatype, raw] : types) {
      if (std::string_view(type.protocol) != datatype) {
        continue;
      }
      raw.resize(type.bits == 0 ? raw.size() : 2 * type.bits / 8, '\0');
      serve_identity(static_cast<ONNXTensorElementDataType>(type.number));
      for (const std::size_t offset : {0U, 1U}) {
        EXPECT_EQ(data(ask(binary(raw, "[2]", datatype, offset, "same"))), raw) << datatype;
      }
      EXPECT_EQ(data(ask(binary("", "[0]", datatype, 0, "same"))), "") << datatype;
      // As JSON, and back.
      const std::string json = text(ask(binary(raw, "[2]", datatype, 0, "same", "")));
      const std::string values = json.substr(json.find("\"data\":"), json.find("]}]") + 1 - json.find("\"data\":"));
      const std::string head = R"({"inputs":[{"name":"x","shape":[2],"datatype":")" + std::string(datatype) + "\",";
      EXPECT_EQ(text(ask(http(head + values + "}]}", 0, "same"))), json) << datatype;
    }
  }
}

TEST_F(ServeInfer, AByteOfABoolIsOneOrZero) {
  serve_identity(ONNX_TENSOR_ELEMENT_DATA_TYPE_BOOL);
  EXPECT_EQ(data(ask(binary("\x02\xFF", "[2]", "BOOL", 0, "same"))), "\x01\x01");
}

TEST_F(ServeInfer, WhatIsWrongGetsOneClearAnswer) {
  serve_add();
  const std::pair<std::shared_ptr<Call>, std::string> wrong[] = {
      {binary(three, "[1,2]"), "unexpected shape for input 'x' for model 'add'. Expected [-1,3], got [1,2]"},
      {binary(three, "[2,3]"), "input byte size mismatch for input 'x' for model 'add'. Expected 24, got 12"},
      {binary(three, "[4611686018427387904,3]"), "Expected 55340232221128654848, got 12"},
      {binary("", "[9223372036854775807,3]"), "Expected 110680464442257309684, got 0"},
      {binary(three, "[1,3]", "FP64"), "data-type is 'FP64', but model 'add' expects 'FP32'"},
      {binary(three, "[1,3]", "FP32", 0, "add", R"(,"parameters":{"timeout":"5"})"),
       "an integer of microseconds, not '5'"},
      {binary(three, "[1,3]", "FP32", 0, "add", R"(,"parameters":{"priority":-1})"), "'priority' is 1 to 2147483647"},
      {binary(three, "[1,3]", "FP32", 0, "add", R"(,"outputs":[{"name":"z"}])"), "unexpected inference output 'z'"},
      {binary(three, "[1,3]", "FP32", 0, "add", R"(,"outputs":[{"name":"sum"},{"name":"sum"}])"), "more than once"},
      {http(R"({"inputs":[]})"), "but missing required input(s) ['x']. Please provide all required input(s)."},
      {http(json_request, 5000), "Inference-Header-Content-Length is 0 to"},
      {http("{}", 1), "failed to parse the request JSON buffer: "},
  };
  for (const auto& [call, message] : wrong) {
    const Reply reply = ask(call);
    EXPECT_EQ(reply.status, 400);
    EXPECT_NE(text(reply).find(message), std::string::npos) << text(reply);
  }
  EXPECT_EQ(ask(http(json_request)).status, 200);
}

TEST_F(ServeInfer, LimitsAreKept) {
  const auto model = serve_add();
  limits.json = 50;
  const Reply reply = ask(http(json_request));
  EXPECT_EQ(reply.status, 413);
  EXPECT_NE(text(reply).find("binary form"), std::string::npos);
  limits.json = 1000;
  model->max_rows = 1;
  EXPECT_NE(text(ask(binary(three + three, "[2,3]"))).find("batch-size must be <= 1 for 'add'"), std::string::npos);
  model->recurrent = true;
  EXPECT_NE(text(ask(binary("", "[0,3]"))).find("input 'x' is empty (shape [0, 3])"), std::string::npos);
  model->recurrent = false;
  EXPECT_EQ(ask(binary("", "[0,3]")).status, 200);
  // The memory of tensors counts.
  Limits few;
  few.memory = 8;
  Admission full(few);
  const auto call = http(json_request);
  call->bytes = Admission::Bytes(full);
  EXPECT_EQ(ask(call).status, 503);
}

TEST_F(ServeInfer, RowsAreCountedBeforeMemoryIsTakenForThem) {
  const auto model = serve_add();
  model->max_rows = 1;
  Limits few;
  few.memory = 8;
  Admission full(few);
  const auto call = http(R"({"inputs":[{"name":"x","shape":[2,3],"datatype":"FP32","data":[1,2,3,4,5,6]}]})");
  call->bytes = Admission::Bytes(full);
  EXPECT_EQ(ask(call).status, 400);
}

TEST_F(ServeInfer, StringsCountWithWhatTheyTakeBesideTheirBytes) {
  EXPECT_EQ(string_tensor_bytes(1000, 0), 1000 * sizeof(std::string));
  EXPECT_EQ(string_tensor_bytes(1, 1'000'000), sizeof(std::string) + 1'000'000 + 24);
  EXPECT_EQ(string_tensor_bytes(10, 160), 10 * (sizeof(std::string) + 40));
  serve_identity(ONNX_TENSOR_ELEMENT_DATA_TYPE_STRING);
  Limits few;
  few.memory = 20 * sizeof(std::string);
  Admission little(few);
  for (const std::size_t count : {10U, 30U}) {
    const std::string zeros(count * 4, '\0');
    const auto call = binary(zeros, "[" + std::to_string(count) + "]", "BYTES", 0, "same");
    call->bytes = Admission::Bytes(little);
    EXPECT_EQ(ask(call).status, count == 10 ? 200 : 503);
  }
}

TEST_F(ServeInfer, AnswersCountFromTheRunOn) {
  receiver = std::make_shared<CountedAnswers>(receiver);
  const auto model = serve_add();
  constexpr std::size_t rows = 20'000;
  const std::string data(rows * three.size(), '\0');
  const std::string shape = "[" + std::to_string(rows) + ",3]";
  const auto call = binary(data, shape);
  const Begun begun = begin(call);
  const auto request = begun.ended ? begun.request : finished();
  const std::size_t answer = data.size() * model->outputs.size();
  EXPECT_EQ(request->answer_bytes.count(), answer);
  EXPECT_EQ(admission.bytes(), answer) << "the body is its connection's";
  EXPECT_EQ(answer_of(*request).status, 200);
  EXPECT_EQ(call->bytes.count(), answer);
  EXPECT_EQ(model->answer_size.expected(data.size()), answer);
  // Where there is no room, nothing is computed.
  Limits few;
  few.memory = answer;
  Admission full(few);
  Admission::Bytes others(full);
  others.set(answer * 3 / 4);
  const auto refused = binary(data, shape);
  refused->bytes = Admission::Bytes(full);
  const Begun none = begin(refused);
  ASSERT_NE(none.reply, nullptr);
  EXPECT_EQ(none.reply->status, 503);
  EXPECT_NE(text(*none.reply).find("memory left for answers"), std::string::npos);
  EXPECT_EQ(model->counts->inferences, 1U);
}

TEST_F(ServeInfer, AnAnswerThatIsLargerThanExpectedIsDropped) {
  receiver = std::make_shared<CountedAnswers>(receiver);
  const auto model = serve_add();
  constexpr std::size_t rows = 20'000;
  const std::string data(rows * three.size(), '\0');
  model->answer_size.note(1, 1);
  for (int i = 0; i < 300; ++i) {
    model->answer_size.note(1000, 1);
  }
  Limits few;
  few.memory = data.size() - 1;
  Admission full(few);
  const auto call = binary(data, "[" + std::to_string(rows) + ",3]");
  call->bytes = Admission::Bytes(full);
  const Begun begun = begin(call);
  ASSERT_EQ(begun.reply, nullptr) << text(*begun.reply);
  const auto request = begun.ended ? begun.request : finished();
  EXPECT_TRUE(request->outputs.empty());
  EXPECT_EQ(full.bytes(), 0U);
  EXPECT_EQ(answer_of(*request).status, 503);
}

TEST_F(ServeInfer, WhatIsNotKnownHereIsPythons) {
  const auto model = serve_add();
  EXPECT_TRUE(begin(http(json_request, 0, "other")).not_mine);
  auto call = http(json_request);
  call->path = "/v2/models/add/versions/4/infer";
  EXPECT_TRUE(begin(call).not_mine);
  call->path = "/v2/models/add";
  EXPECT_TRUE(begin(call).not_mine);
  call = http(json_request);
  call->headers = {{"content-encoding", "gzip"}};
  EXPECT_TRUE(begin(call).not_mine);
  EXPECT_TRUE(begin(grpc(wire_field(1, "other"))).not_mine);
  model->pool.lock()->close(true);
  EXPECT_TRUE(begin(http(json_request)).not_mine);
}

std::string grpc_request() {
  const std::string tensor = wire_field(1, "x") + wire_field(2, "FP32") + wire_field(3, "\x01\x03");
  return wire_field(1, "add") + wire_field(3, "7") + wire_field(5, tensor) + wire_field(6, wire_field(1, "sum")) +
         wire_field(7, three);
}

std::string grpc_answer(const std::string& parameters = "") {
  const std::string output = wire_field(1, "sum") + wire_field(2, "FP32") + wire_field(3, "\x01\x03");
  return wire_field(1, "add") + wire_field(2, "3") + wire_field(3, "7") + parameters + wire_field(5, output) +
         wire_field(6, sums);
}

TEST_F(ServeInfer, AnswersGrpc) {
  serve_add();
  EXPECT_EQ(text(ask(grpc(grpc_request()))), grpc_answer());
  const std::string final = wire_field(4, wire_field(1, "triton_final_response") + wire_field(2, wire_field(1, 1)));
  EXPECT_EQ(text(ask(grpc(grpc_request(), true))), wire_field(2, grpc_answer(final)));
  const std::string wrong = grpc_request() + wire_field(7, "more");
  Reply reply = ask(grpc(wrong));
  EXPECT_EQ(reply.status, 400);
  EXPECT_EQ(reply.message, "2 raw_input_contents were sent for 1 inputs: one is needed for each");
  reply = ask(grpc(wrong, true));
  EXPECT_EQ(reply.status, 200) << "the stream goes on";
  EXPECT_EQ(text(reply), wire_field(1, "2 raw_input_contents were sent for 1 inputs: one is needed for each") +
                             wire_field(2, wire_field(3, "7") + final));
  EXPECT_EQ(ask(grpc("\x0F")).status, 500);
}

TEST_F(ServeInfer, RowsOfJointRunsAreCounted) {
  Pool::Options options;
  options.batching.max_size = 8;
  const auto model = serve_add(options);
  EXPECT_EQ(data(ask(binary(three + three, "[2,3]"))).substr(0, 2 * sums.size()), sums + sums);
  EXPECT_EQ(model->counts->inferences, 2U);
}

TEST_F(ServeInfer, AFullQueueIsSaid) {
  const auto runner = serve_held(0);
  const Begun held = begin(http(json_request));
  runner->wait_for_runs(1);
  const Reply reply = ask(http(json_request));
  EXPECT_EQ(reply.status, 503);
  EXPECT_NE(text(reply).find("Exceeds maximum queue size"), std::string::npos);
  runner->release();
  EXPECT_EQ(finished(), held.request);
}

TEST_F(ServeInfer, ALateAnswerIsSaid) {
  const auto runner = serve_held();
  const Begun held = begin(http(json_request));
  runner->wait_for_runs(1);
  const Reply reply = ask(binary(three, "[1,3]", "FP32", 0, "add", R"(,"parameters":{"timeout":10000})"));
  EXPECT_EQ(reply.status, 503);
  EXPECT_NE(text(reply).find("Request timeout expired"), std::string::npos);
  const auto call = grpc(grpc_request());
  call->headers = {{"grpc-timeout", "10m"}};
  EXPECT_EQ(ask(call).status, 504);
  runner->release();
  EXPECT_EQ(finished(), held.request);
}

TEST_F(ServeInfer, ADeadlineBeginsWithTheRequestsHead) {
  const auto runner = serve_held();
  const auto call = binary(three, "[1,3]", "FP32", 0, "add", R"(,"parameters":{"timeout":50000000})");
  const Begun held = begin(call);
  EXPECT_EQ(held.request->deadline, call->since + 50s);
  const auto other = grpc(grpc_request());
  other->headers = {{"grpc-timeout", "40S"}};
  const Begun waiting = begin(other);
  EXPECT_EQ(waiting.request->deadline, other->since + 40s);
  runner->release();
  finished();
  finished();
}

TEST_F(ServeInfer, NothingIsReadForAClientThatHasGone) {
  const auto runner = serve_held();
  const auto call = http("no JSON");
  call->gone = true;
  EXPECT_EQ(ask(call).status, 499);
  EXPECT_TRUE(runner->runs().empty());
}

TEST_F(ServeInfer, NothingIsRunForAClientThatHasGone) {
  const auto runner = serve_held();
  const Begun held = begin(http(json_request));
  runner->wait_for_runs(1);
  const Begun waiting = begin(http(json_request));
  cancel(waiting.request);
  EXPECT_EQ(finished(), waiting.request);
  cancel(held.request);
  EXPECT_EQ(finished(), held.request) << "its run was ended";
  EXPECT_EQ(answer_of(*held.request).status, 499);
  EXPECT_EQ(runner->runs().size(), 1U);
}

TEST_F(ServeInfer, ARequestOfAPoolThatWasClosedIsPythonsAfterAll) {
  const auto pool = Pool::make({});
  pool->set_opening(true);  // its sessions are on their way
  const auto model = std::make_shared<ServedModel>();
  model->name = "add";
  model->pool = pool;
  model->inputs = {{"x", "FP32", ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, {-1, 3}}};
  model->outputs = {{"sum", "FP32", ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, {-1, 3}}};
  models.put(model);
  const auto call = http(json_request);
  ASSERT_TRUE(begin(call).request);
  EXPECT_GT(call->bytes.count(), 0U);
  pool->close(true);
  EXPECT_FALSE(reply_of(*finished()));
  EXPECT_EQ(call->bytes.count(), 0U);
}

TEST_F(ServeInfer, ARunThatFailsIsSaid) {
  const auto runner = serve_held();
  runner->action = [](Request&) { throw Error(ErrorKind::invalid_argument, "bad '/srv/m.onnx'"); };
  runner->release();
  const Reply reply = ask(http(json_request));
  EXPECT_EQ(reply.status, 400);
  EXPECT_NE(text(reply).find("bad 'm.onnx'"), std::string::npos);
}

TEST_F(ServeInfer, StatisticsGoOnWithAnotherPool) {
  const auto before = serve_add();
  before->counts->inferences = 5;
  const auto after = serve_add();
  EXPECT_EQ(after->counts->inferences, 5U);
  before->counts->inferences += 2;  // of requests that still ran
  EXPECT_EQ(after->counts->inferences, 7U);
}

}  // namespace
}  // namespace ortmulti::tests
