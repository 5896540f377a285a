#include <gtest/gtest.h>
#include <onnxruntime_cxx_api.h>

#include <string>

#include "core/base/error.hpp"

namespace ortmulti::tests {
namespace {

TEST(Megabytes, TellSizesApartThatAreNearEachOther) {
  EXPECT_EQ(megabytes(999), "0 kB");
  EXPECT_EQ(megabytes(999'999), "999 kB");
  EXPECT_EQ(megabytes(21'480'000), "21.4 MB");
  EXPECT_EQ(megabytes(99'960'000), "99.9 MB");
  EXPECT_EQ(megabytes(1'073'741'824), "1073 MB");
}

TEST(ErrorMapping, KeepsOnnxRuntimesCodesUnderTheirNumbers) {
  EXPECT_EQ(static_cast<int>(ErrorKind::fail), ORT_FAIL);
  EXPECT_EQ(static_cast<int>(ErrorKind::invalid_argument), ORT_INVALID_ARGUMENT);
  EXPECT_EQ(static_cast<int>(ErrorKind::no_such_file), ORT_NO_SUCHFILE);
  EXPECT_EQ(static_cast<int>(ErrorKind::no_model), ORT_NO_MODEL);
  EXPECT_EQ(static_cast<int>(ErrorKind::engine_error), ORT_ENGINE_ERROR);
  EXPECT_EQ(static_cast<int>(ErrorKind::runtime_exception), ORT_RUNTIME_EXCEPTION);
  EXPECT_EQ(static_cast<int>(ErrorKind::invalid_protobuf), ORT_INVALID_PROTOBUF);
  EXPECT_EQ(static_cast<int>(ErrorKind::model_loaded), ORT_MODEL_LOADED);
  EXPECT_EQ(static_cast<int>(ErrorKind::not_implemented), ORT_NOT_IMPLEMENTED);
  EXPECT_EQ(static_cast<int>(ErrorKind::invalid_graph), ORT_INVALID_GRAPH);
  EXPECT_EQ(static_cast<int>(ErrorKind::ep_fail), ORT_EP_FAIL);
  for (int code = 1; code <= static_cast<int>(ErrorKind::device_reset); ++code) {
    const Ort::Exception exception("text", static_cast<OrtErrorCode>(code));
    EXPECT_EQ(static_cast<int>(from_onnxruntime(exception, "doing").kind()), code);
  }
}

TEST(ErrorMapping, TakesAnExceptionWithoutCodeAsAFailure) {
  EXPECT_EQ(from_onnxruntime(Ort::Exception("text", ORT_OK), "doing").kind(), ErrorKind::fail);
}

TEST(ErrorMapping, PutsTheContextBeforeTheText) {
  const Ort::Exception exception("what happened", ORT_FAIL);
  EXPECT_STREQ(from_onnxruntime(exception, "creating a session").what(), "creating a session: what happened");
  EXPECT_STREQ(from_onnxruntime(exception, "").what(), "what happened");
}

TEST(ErrorMapping, KnowsExhaustedMemoryByItsText) {
  for (const char* text :
       {"bfc_arena.cc:376 Failed to allocate memory for requested buffer of size 1024", "CUDA failure 2: out of memory",
        "std::bad_alloc", "Available memory of 5 is smaller than requested bytes of 6"}) {
    const Ort::Exception exception(text, ORT_RUNTIME_EXCEPTION);
    const Error error = from_onnxruntime(exception, "running");
    EXPECT_EQ(error.kind(), ErrorKind::out_of_memory) << text;
    EXPECT_NE(std::string(error.what()).find(text), std::string::npos);
  }
  // The context is ours, and may name anything.
  EXPECT_EQ(from_onnxruntime(Ort::Exception("text", ORT_FAIL), "running 'out of memory.onnx'").kind(), ErrorKind::fail);
}

}  // namespace
}  // namespace ortmulti::tests
