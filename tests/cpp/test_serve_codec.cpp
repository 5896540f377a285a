#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/error.hpp"
#include "core/onnx/wire.hpp"
#include "core/serve/infer_grpc.hpp"
#include "core/serve/infer_http.hpp"
#include "core/serve/json_request.hpp"
#include "core/serve/json_rows.hpp"
#include "core/serve/public_text.hpp"
#include "test_support.hpp"

namespace ortmulti::tests {
namespace {

using namespace serve;
using Kind = SentValue::Kind;

constexpr std::size_t most = 4;

std::string refusal_of(std::string_view json) {
  try {
    read_json(json, most);
  } catch (const Refused& refused) {
    return refused.text;
  }
  return "";
}

std::vector<double> doubles(std::string_view json, std::size_t count) {
  std::vector<double> values(count);
  ValueWriter writer(ONNX_TENSOR_ELEMENT_DATA_TYPE_DOUBLE, reinterpret_cast<std::byte*>(values.data()), count);
  read_json_values(json, {&writer});
  EXPECT_TRUE(writer.complete()) << writer.problem();
  return values;
}

std::string number(double value) {
  std::string text;
  append_json_number(text, value);
  return text;
}

TEST(ServeJson, KeysMayHaveAnyOrderAndTheLastOfEqualOnesCounts) {
  const std::string text =
      R"({"inputs":[{"data":[9,9,9,"a"]},7],"id":"first","inputs":[{"shape":[1],"data":["x",[2]],"name":"x",)"
      R"("shape":[2,2],"data":[[1,2],[3,4.5]],"datatype":"FP64"}],"id":"7","parameters":5,"parameters":{"timeout":0}})";
  const JsonRequest request = read_json(text, most);
  ASSERT_EQ(request.input.size(), 1U);
  const JsonRequest::Input& input = request.input[0];
  EXPECT_EQ(input.name.text, "x");
  EXPECT_EQ(input.sizes.sizes, (std::vector<std::int64_t>{2, 2}));
  EXPECT_EQ(input.values.count, 4U);
  EXPECT_FALSE(input.values.uneven);
  EXPECT_TRUE(input.values.only(SentValues::bit(Kind::integer) | SentValues::bit(Kind::real)));
  EXPECT_EQ(request.id.text, "7");
  EXPECT_TRUE(request.parameters.is(Kind::object));
  EXPECT_EQ(doubles(text, 4), (std::vector<double>{1, 2, 3, 4.5}));
}

TEST(ServeJson, ValuesAreCountedAsTheyAreNested) {
  const auto values = [](const std::string& data) {
    return read_json(R"({"inputs":[{"data":)" + data + "}]}", most).input.at(0).values;
  };
  EXPECT_EQ(values("[[],[1,2],[]]").count, 2U);
  EXPECT_EQ(values("[[[]]]").count, 0U);
  EXPECT_TRUE(values("[[1],2]").uneven);
  EXPECT_TRUE(values("[[[1]],[2]]").uneven);
  EXPECT_FALSE(values("[1,[2,3]]").only(SentValues::bit(Kind::integer))) << "a list is no number";
  EXPECT_EQ(values("[1,[2,3]]").count, 2U);
  EXPECT_FALSE(values("[1,null]").only(SentValues::bit(Kind::integer)));
}

TEST(ServeJson, NoMoreTensorsAreKeptThanAreAllowed) {
  std::string inputs = R"({"name":"x","shape":[1]})";
  for (int i = 1; i < 100; ++i) {
    inputs += R"(,{"name":"y","shape":[2],"data":[1]})";
  }
  const JsonRequest request = read_json(R"({"inputs":[)" + inputs + R"(],"outputs":[1,2,3,4,5,6]})", most);
  EXPECT_EQ(request.input_count, 100U);
  EXPECT_EQ(request.input.size(), most);
  EXPECT_EQ(request.output_count, 6U);
  EXPECT_EQ(request.output.size(), most);
}

TEST(ServeJson, WhatIsNoneIsRefused) {
  for (const char* text : {"", "{", "nul", "{'a':1}", "[1 2]", "{\"a\":01}", "{\"a\":1,}", "{} x", "\"\t\"", "\xFF\xFE",
                           "{\"id\":\"\xED\xA0\x80\"}", "-NaN", "[1-Infinity]", "[1NaN]", "[NaN1]", "[nan]"}) {
    EXPECT_TRUE(refusal_of(text).starts_with("failed to parse the request JSON buffer: ")) << text;
  }
  EXPECT_NE(refusal_of(R"({"id":"\ud800"})").find("surrogates not allowed"), std::string::npos);
  EXPECT_NE(refusal_of(R"({"id":"\udfff x"})").find("surrogates not allowed"), std::string::npos);
  EXPECT_NE(refusal_of(std::string(100'000, '[')).find("nested too deeply"), std::string::npos);
  EXPECT_EQ(read_json(R"({"id":"\ud83d\ude00"})", most).id.text, "\xF0\x9F\x98\x80");
}

// Of the first two numbers one is read ahead, the other by the reader of all JSON.
TEST(ServeJson, NumbersThatAreReadAheadHaveTheSameBits) {
  const auto both = [](const std::string& text) {
    // What is no number keeps those behind it from being read ahead.
    const auto values = doubles(R"({"inputs":[{"data":[)" + text + R"(,1e-0,)" + text + "]}]}", 3);
    EXPECT_EQ(std::bit_cast<std::uint64_t>(values[0]), std::bit_cast<std::uint64_t>(values[2])) << text;
  };
  for (const char* text :
       {"0", "-0", "-0.0", "1", "-7", "123456789012345678", "1234567890123456789", "18446744073709551615",
        "18446744073709551616", "-9223372036854775809", "9007199254740993", "0.1", "1e99", "1E-99", "1.5e+9", "1e100",
        "5e-324", "2.2250738585072011e-308", "12345678901234567890123456789012345678901234567890.5"}) {
    both(text);
  }
  std::mt19937_64 random(7);  // NOLINT(bugprone-random-generator-seed): the same numbers each time
  for (int i = 0; i < 10'000; ++i) {
    const auto value = std::bit_cast<double>(random());
    if (std::isfinite(value)) {
      both(number(value));
    }
  }
}

TEST(ServeJson, ListsOfNumbersAreRefusedAsAllJsonIs) {
  for (const char* list : {"[1,]", "[1,,2]", "[,1]", "[01]", "[1.]", "[.5]", "[1.5e]", "[-]", "[+1]", "[1 2]", "[1",
                           "[1,", "[1]]", "[1}", "[1e999]", "[0x1]"}) {
    const std::string text = std::string(R"({"inputs":[{"data":)") + list + "}]}";
    EXPECT_TRUE(refusal_of(text).starts_with("failed to parse the request JSON buffer: ")) << text;
  }
  const std::string place = "parse error at line 1, column 25";
  EXPECT_NE(refusal_of(R"({"inputs":[{"data":[1,2,]}]})").find(place), std::string::npos)
      << refusal_of(R"({"inputs":[{"data":[1,2,]}]})");
  EXPECT_EQ(doubles("{\"inputs\":[{\"data\":[ 1 ,\n2\t,\r[3],[ ] ]}]}", 3), (std::vector<double>{1, 2, 3}));
}

TEST(ServeJson, NanAndInfinityAreReadAsPythonWritesThem) {
  const auto values = doubles(R"({"id":"NaN \" Infinity","inputs":[{"data":[NaN, Infinity,-Infinity,0e-1,1.5]}]})", 5);
  EXPECT_TRUE(std::isnan(values[0]));
  EXPECT_EQ(values[1], std::numeric_limits<double>::infinity());
  EXPECT_EQ(values[2], -std::numeric_limits<double>::infinity());
  EXPECT_EQ(values[3], 0);
  EXPECT_EQ(values[4], 1.5);
  EXPECT_EQ(read_json(R"({"id":"NaN \" Infinity","x":NaN})", most).id.text, "NaN \" Infinity");
}

TEST(ServeJson, NumbersAreWrittenAsPythonWritesThem) {
  for (const auto& [value, text] :
       std::vector<std::pair<double, std::string>>{{0.0, "0.0"},
                                                   {-0.0, "-0.0"},
                                                   {1.0, "1.0"},
                                                   {100000.0, "100000.0"},
                                                   {0.1, "0.1"},
                                                   {static_cast<double>(0.1F), "0.10000000149011612"},
                                                   {1e16, "1e+16"},
                                                   {9999999999999998.0, "9999999999999998.0"},
                                                   {0.0001, "0.0001"},
                                                   {0.00009999, "9.999e-05"},
                                                   {1e-5, "1e-05"},
                                                   {1.5e300, "1.5e+300"},
                                                   {5e-324, "5e-324"},
                                                   {std::nan(""), "NaN"},
                                                   {-std::numeric_limits<double>::infinity(), "-Infinity"}}) {
    EXPECT_EQ(number(value), text);
  }
  std::string text;
  append_json_text(text, "a\"\\\n\x01\x7F\xC3\xBC");
  EXPECT_EQ(text, "\"a\\\"\\\\\\n\\u0001\x7F\xC3\xBC\"");
}

TEST(ServeNumbers, HalvesAreRoundedToEven) {
  for (unsigned half = 0; half < 0x10000; ++half) {
    const double value = from_half(static_cast<std::uint16_t>(half));
    if (!std::isnan(value)) {
      EXPECT_EQ(to_half(value), half);
    }
  }
  EXPECT_EQ(to_half(2049), to_half(2048));
  EXPECT_EQ(to_half(2051), to_half(2052));
  EXPECT_EQ(from_half(to_half(65519.99)), 65504);
  EXPECT_TRUE(std::isinf(from_half(to_half(65520))));
  EXPECT_EQ(to_half(std::ldexp(1, -25)), 0U);
  EXPECT_EQ(to_half(std::ldexp(1.1, -25)), 1U);
  EXPECT_EQ(from_bfloat(to_bfloat(1.00390625F)), 1.0F);
  EXPECT_EQ(from_bfloat(to_bfloat(1.01171875F)), 1.015625F);
}

TEST(ServeNumbers, WhatATypeHasNotIsAProblem) {
  std::byte memory[8] = {};
  const auto problem = [&memory](ONNXTensorElementDataType type, auto value) {
    ValueWriter writer(type, memory, 1);
    writer.put(value);
    return writer.problem();
  };
  EXPECT_EQ(problem(ONNX_TENSOR_ELEMENT_DATA_TYPE_INT8, std::int64_t{-129}),
            "-129 is outside the range of INT8, -128 to 127");
  EXPECT_EQ(problem(ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT64, std::int64_t{-1}),
            "-1 is outside the range of UINT64, 0 to 18446744073709551615");
  EXPECT_EQ(problem(ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT64, ~std::uint64_t{0}), "");
  EXPECT_EQ(problem(ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, 3.4028235677973366e38),
            "3.4028235677973366e+38 is outside the range of FP32, -3.4028235e+38 to 3.4028235e+38");
  EXPECT_EQ(problem(ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, 3.4028235677973362e38), "");
  EXPECT_EQ(problem(ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16, 65520.0),
            "65520.0 is outside the range of FP16, -65504 to 65504");
  EXPECT_EQ(problem(ONNX_TENSOR_ELEMENT_DATA_TYPE_BFLOAT16, 3.4e38),
            "3.4e+38 is outside the range of BF16, -3.3895314e+38 to 3.3895314e+38");
  EXPECT_NE(problem(ONNX_TENSOR_ELEMENT_DATA_TYPE_BFLOAT16, -1e300), "");
  EXPECT_EQ(problem(ONNX_TENSOR_ELEMENT_DATA_TYPE_BFLOAT16, 3.39e38), "");
  EXPECT_EQ(problem(ONNX_TENSOR_ELEMENT_DATA_TYPE_BFLOAT16, std::numeric_limits<double>::infinity()), "");
  EXPECT_NE(problem(ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32, 1.5), "");
  EXPECT_NE(problem(ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32, std::string_view("1")), "");
}

TEST(ServeNumbers, TheElementsOfAShapeAreCountedWhateverTheyAre) {
  SentShape shape;
  shape.add(std::int64_t{1} << 62);
  shape.add(4);
  EXPECT_EQ(shape.elements(), std::nullopt);
  EXPECT_EQ(shape.elements_text(), "18446744073709551616");
  for (int i = 0; i < 2; ++i) {
    shape.add(1'000'000'000'000);
  }
  EXPECT_EQ(shape.elements_text(), "18446744073709551616000000000000000000000000");
  shape.add(0);
  EXPECT_EQ(shape.elements(), 0U);
}

TEST(ServeNumbers, Utf8IsThatOfTheStandard) {
  for (const char* text :
       {"", "plain text of some length", "gr\xC3\xBCn", "\xE2\x82\xAC", "\xF0\x9F\x98\x80 12345678"}) {
    EXPECT_TRUE(is_utf8(text)) << text;
  }
  for (const char* text :
       {"\x80", "12345678\xC3", "\xC0\x80", "\xE0\x80\x80", "\xED\xA0\x80", "\xF4\x90\x80\x80", "\xFF"}) {
    EXPECT_FALSE(is_utf8(text)) << text;
  }
}

JsonRows rows_of(const std::vector<float>& numbers, std::size_t columns) {
  JsonRows rows;
  rows.numbers = numbers;
  rows.columns = columns;
  return rows;
}

// The rows as text, where the memory for them is enough.
std::string written(const JsonRows& rows) {
  std::string text(rows.most_bytes(), '?');
  text.resize(static_cast<std::size_t>(rows.write(text.data()) - text.data()));
  return text;
}

TEST(ServeJsonRows, NumbersHaveTheFewestDigitsThatAreReadAsTheSame) {
  const std::vector<float> numbers{0.1F, -0.0F, 1, 16777216, 1e-45F, -1.17549435e-38F};
  EXPECT_EQ(written(rows_of(numbers, 3)), "[0.1,-0,1],[16777216,1e-45,-1.1754944e-38]");
  std::mt19937 random(7);  // NOLINT(bugprone-random-generator-seed): the same values in every run
  std::vector<float> any(1000);
  for (float& number : any) {
    do {
      number = std::bit_cast<float>(static_cast<std::uint32_t>(random()));
    } while (!std::isfinite(number));
  }
  const std::vector<double> read =
      doubles(R"({"inputs":[{"data":)" + written(rows_of(any, any.size())) + "}]}", any.size());
  for (std::size_t i = 0; i < any.size(); ++i) {
    EXPECT_EQ(static_cast<float>(read[i]), any[i]);
  }
}

TEST(ServeJsonRows, RowsHaveTheirNumbersAndMayBeBase64) {
  const std::vector<float> numbers{1, 2, 3, 4};
  const auto around = [&](std::size_t columns, JsonRows::Form form) {
    JsonRows rows = rows_of(numbers, columns);
    rows.form = form;
    rows.head = "[";
    rows.tail = "]";
    rows.before = "<";
    rows.behind_number = ":";
    rows.behind = ">";
    return written(rows);
  };
  EXPECT_EQ(around(2, JsonRows::Form::numbers), "[<0:[1,2]>,<1:[3,4]>]");
  EXPECT_EQ(around(4, JsonRows::Form::base64), R"([<0:"AACAPwAAAEAAAEBAAACAQA==">])");
  EXPECT_EQ(around(2, JsonRows::Form::base64), R"([<0:"AACAPwAAAEA=">,<1:"AABAQAAAgEA=">])");
  EXPECT_EQ(written(rows_of({}, 1)), "");
}

TEST(ServePath, TheModelAndItsVersionAreThePaths) {
  const auto parts = [](const char* path) {
    const auto split = infer_path(path);
    return split ? split->model + " " + split->version : "none";
  };
  EXPECT_EQ(parts("/v2/models/a b/infer"), "a b ");
  EXPECT_EQ(parts("//v2/models/a%20/versions/7/infer/"), "a%20 7") << "it is decoded already";
  for (const char* path : {"/", "", "/v2/models//infer", "/v2/models/x", "/v2/models/x/infer/y", "/v2/models/infer",
                           "/v3/models/x/infer", "/v2/models/x/versions/infer", "/v2/models/x/ready"}) {
    EXPECT_FALSE(infer_path(path)) << path;
  }
}

TEST(ServeProtobuf, FieldsMayComeInPartsAndTwice) {
  const std::string values = wire_field(6, std::string("\0\0\x80\x3F", 4));
  const std::string tensor = wire_field(1, "y") + wire_field(1, "x") + wire_field(2, "FP32") + wire_field(3, 1) +
                             wire_field(3, "\x02\x03") + wire_field(5, values) + wire_field(5, values);
  const std::string message =
      wire_field(1, "m") + wire_field(99, "unknown") + wire_field(5, tensor) + wire_field(3, "id");
  GrpcRequest request = read_grpc(message, most);
  EXPECT_EQ(request.model, "m");
  EXPECT_EQ(request.id, "id");
  const Asked asked = check_grpc(std::move(request), most);
  ASSERT_EQ(asked.inputs.size(), 1U);
  EXPECT_EQ(asked.inputs[0].name, "x");
  EXPECT_EQ(asked.inputs[0].shape.sizes, (std::vector<std::int64_t>{1, 2, 3}));
  ASSERT_EQ(count_contents(asked.inputs[0]).count, 2U);
  float read[2] = {};
  ValueWriter writer(ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, reinterpret_cast<std::byte*>(read), 2);
  read_contents(asked.inputs[0], writer);
  EXPECT_TRUE(writer.complete());
  EXPECT_EQ(read[1], 1.0F);
}

TEST(ServeProtobuf, EmptyInputsAreCountedAndNotKept) {
  std::string message;
  for (int i = 0; i < 100'000; ++i) {
    message += wire_field(5, "");
  }
  GrpcRequest request = read_grpc(message, most);
  EXPECT_EQ(request.input_count, 100'000U);
  EXPECT_EQ(request.inputs.size(), most);
  EXPECT_THROW(check_grpc(std::move(request), most), Refused);
}

TEST(ServeProtobuf, WhatIsNoMessageIsAnError) {
  for (const std::string& message : {wire_field(1, "abc").substr(0, 4), wire_field(3, "\xFF"), std::string("\x0F"),
                                     std::string(11, '\xFF'), wire_field(5, "\x0A\x05x")}) {
    EXPECT_TRUE(throws(ErrorKind::invalid_protobuf, {}, [&message] { read_grpc(message, most); }));
  }
}

TEST(ServeErrors, ClientsSeeNoFolders) {
  EXPECT_EQ(without_folders("[ONNXRuntimeError] : 1 : FAIL : Load model from /srv/a b/m.onnx failed\nmore"),
            "Load model from m.onnx failed");
  EXPECT_EQ(without_folders("running 'm.onnx' on cuda:1: wrong"), "wrong");
  EXPECT_EQ(without_folders("in '/srv/models/m.onnx' and /etc/passwd, a/b"), "in 'm.onnx' and passwd, a/b");
  EXPECT_EQ(without_folders("bad \xFF byte"), "bad ? byte");
  const auto status = [](ErrorKind kind) { return public_error(std::make_exception_ptr(Error(kind, "why"))).status; };
  EXPECT_EQ(status(ErrorKind::invalid_type), 400);
  EXPECT_EQ(status(ErrorKind::queue_full), 503);
  EXPECT_EQ(status(ErrorKind::not_implemented), 501);
  EXPECT_EQ(status(ErrorKind::forked), 500);
  EXPECT_EQ(public_error(std::make_exception_ptr(std::runtime_error("/secret"))).text, "the request failed");
}

}  // namespace
}  // namespace ortmulti::tests
