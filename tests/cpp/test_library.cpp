#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>
#include <iostream>
#include <string>
#include <vector>

#include "core/ort/library.hpp"
#include "core/ort/value.hpp"
#include "test_support.hpp"

namespace ortmulti::tests {
namespace {

class Library : public RealSessions {};

TEST_F(Library, IsOpenedOnce) {
  OnnxRuntime& first = runtime();
  EXPECT_TRUE(OnnxRuntime::is_open());
  EXPECT_EQ(&runtime(), &first);
  EXPECT_EQ(&OnnxRuntime::get(), &first);
  EXPECT_EQ(first.path(), std::getenv("ORTMULTI_ONNXRUNTIME_LIBRARY"));
}

TEST_F(Library, ASecondOneIsRefused) {
  EXPECT_TRUE(throws(ErrorKind::library, {runtime().path().c_str(), "/elsewhere/libonnxruntime.so"},
                     [] { OnnxRuntime::open("/elsewhere/libonnxruntime.so"); }));
  EXPECT_EQ(OnnxRuntime::get().path(), runtime().path());
}

TEST_F(Library, AForkedChildHasALogOfItsOwn) {
  onnxruntime_log().push({2, "", "", "", "the parent's"});
  EXPECT_TRUE(in_forked_child([] {
    const bool empty = take_log().empty();
    onnxruntime_log().push({2, "", "", "", "the child's"});
    return empty && take_log().size() == 1;
  }));
  const auto records = take_log();
  ASSERT_FALSE(records.empty());
  EXPECT_EQ(records.back().message, "the parent's");
}

// In a process of its own, where no library is open yet.
class LibraryDeathTest : public WithModels {};

TEST_F(LibraryDeathTest, IsAskedForBeforeItIsOpen) {
  expect_in_own_process([] {
    constexpr auto type = ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT;
    float number = 0;
    const auto refuses = [](const std::function<void()>& call) {
      return static_cast<bool>(throws(ErrorKind::library, {"not been opened"}, call));
    };
    return refuses([] { OnnxRuntime::get(); }) &&
           refuses([&] { Value::over(&number, type, {1}, Device::cpu(), {}); }) &&
           refuses([&] { Value::allocate(type, {1}, Device::cpu()); }) && !OnnxRuntime::is_open();
  });
}

TEST_F(LibraryDeathTest, SaysWhatIsWrongWithOthersAndOpensTheRightOneAfterwards) {
  expect_in_own_process([] {
    const TemporaryFolder folder;
    const std::string text = folder.write("libonnxruntime.so", "no library");
    const auto refuses = [](const std::string& path, const char* words) {
      const auto result = throws(ErrorKind::library, {path.c_str(), words}, [&] { OnnxRuntime::open(path); });
      std::cerr << result.message();
      return static_cast<bool>(result) && !OnnxRuntime::is_open();
    };
    const bool good = refuses(folder / "not_there.so", "cannot open") && refuses(text, "cannot open") &&
                      refuses("libm.so.6", "OrtGetApiBase") && refuses(ORTMULTI_OLD_ONNXRUNTIME, "1.16.3");
    runtime();
    return good && OnnxRuntime::is_open();
  });
}

TEST_F(LibraryDeathTest, IsOpenedOnceByManyThreads) {
  expect_in_own_process([] {
    std::vector<OnnxRuntime*> found(8);
    in_threads(8, [&](int i) { found[static_cast<std::size_t>(i)] = &runtime(); });
    return found[0] != nullptr && found == std::vector<OnnxRuntime*>(8, found[0]);
  });
}

}  // namespace
}  // namespace ortmulti::tests
