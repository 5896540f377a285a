#include <dlfcn.h>
#include <gtest/gtest.h>

#include <future>
#include <memory>
#include <string>
#include <vector>

#include "core/ort/options.hpp"
#include "core/ort/value.hpp"
#include "test_support.hpp"

namespace ortmulti::tests {
namespace {

constexpr std::size_t wide = 256;

// Numbers on the heap, which the checks watch.
struct Numbers {
  std::vector<float> values;
};

class Additions : public RealSessions {
 protected:
  static ModelAdditions::NamedValue named(const std::string& name, const std::shared_ptr<Numbers>& numbers,
                                          const std::vector<std::int64_t>& shape) {
    const auto value =
        Value::over(numbers->values.data(), ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, shape, Device::cpu(), numbers);
    return {name, {value, &value->get()}};
  }
  // `factor` times the identity matrix.
  static std::shared_ptr<Numbers> diagonal(float factor) {
    auto numbers = std::make_shared<Numbers>();
    numbers->values.resize(wide * wide);
    for (std::size_t i = 0; i < wide; ++i) {
      numbers->values[i * wide + i] = factor;
    }
    return numbers;
  }
  static std::vector<float> run_wide(Session& session) {
    const std::vector<float> ones(wide, 1.0F);
    return run(session, {{"x", ones, {1, wide}}}, "y");
  }
};

TEST_F(Additions, AnInitializerIsUsedInPlaceAndHeldByTheSession) {
  auto numbers = std::make_shared<Numbers>(Numbers{{10, 20, 30}});
  SessionOptions options;
  options.additions.initializers.push_back(named("c", numbers, {3}));
  const auto session = make_session("add", options);
  const auto handle = session->share();
  const std::weak_ptr<Numbers> watched = numbers;
  options = {};
  numbers.reset();
  EXPECT_EQ(run_add(*session), (std::vector<float>{20, 40, 60}));
  watched.lock()->values = {0, 0, 0};
  EXPECT_EQ(run_add(*session), (std::vector<float>{10, 20, 30}));
  session->close();
  EXPECT_FALSE(watched.expired());
  EXPECT_EQ(run_add(*handle), (std::vector<float>{10, 20, 30}));
  handle->close();
  EXPECT_TRUE(watched.expired());
}

TEST_F(Additions, ExternalInitializersAndFilesTakeThePlaceOfFiles) {
  SessionOptions options;
  options.additions.external_initializers.push_back(named("w", diagonal(3), {wide, wide}));
  EXPECT_EQ(run_wide(*make_session("external", options)), std::vector<float>(wide, 3.0F));
  EXPECT_EQ(run_wide(*make_session("external")), std::vector<float>(wide, 2.0F));

  const auto content = diagonal(5);
  options = {};
  options.additions.files.push_back(
      {"not_there.data", content->values.data(), content->values.size() * sizeof(float), content});
  EXPECT_EQ(run_wide(*make_session("missing_data", options)), std::vector<float>(wide, 5.0F));
}

TEST_F(Additions, WhatDoesNotFitFailsTheCreation) {
  SessionOptions options;
  options.additions.external_initializers.push_back(named("w", diagonal(3), {wide * wide}));
  EXPECT_TRUE(throws(ErrorKind::fail, {"creating a session", "dimensions do not match"},
                     [&] { make_session("external", options); }));
}

TEST_F(Additions, OperatorsOfALibraryRun) {
  SessionOptions options;
  options.additions.custom_op_libraries.push_back(CustomOpLibrary::open(ORTMULTI_CUSTOM_OPS));
  const auto session = make_session("scaled", options);
  const auto second = make_session("scaled", options);
  options = {};
  second->close();
  EXPECT_EQ(run(*session, {{"x", {1, 2}, {2}}}, "y"), (std::vector<float>{3, 6}));
  EXPECT_ANY_THROW(make_session("scaled"));
}

// ONNX Runtime adds a library's domain to its own in two steps, so that sessions that do it at once can fail.
TEST_F(Additions, TheFirstSessionOfALibraryRegistersItAlone) {
  constexpr int sessions = 4;
  SessionOptions options;
  options.additions.custom_op_libraries.push_back(CustomOpLibrary::open(ORTMULTI_CUSTOM_OPS));
  std::vector<std::future<std::vector<float>>> outputs;
  outputs.reserve(sessions);
  for (int i = 0; i < sessions; ++i) {
    outputs.push_back(std::async(
        std::launch::async, [&options] { return run(*make_session("scaled", options), {{"x", {1, 2}, {2}}}, "y"); }));
  }
  for (auto& output : outputs) {
    EXPECT_EQ(output.get(), (std::vector<float>{3, 6}));
  }
  void* const library = dlopen(ORTMULTI_CUSTOM_OPS, RTLD_NOW | RTLD_NOLOAD);
  ASSERT_NE(library, nullptr);
  const auto looks_beside_first = reinterpret_cast<int (*)()>(dlsym(library, "looks_beside_first"));
  ASSERT_NE(looks_beside_first, nullptr);
  EXPECT_EQ(looks_beside_first(), 0);
  dlclose(library);
}

TEST_F(Additions, ALibraryThatIsNoneIsRefusedWhenItIsOpened) {
  const TemporaryFolder folder;
  const std::string text = folder.write("library.so", "no library");
  EXPECT_TRUE(throws(ErrorKind::fail, {"custom operators", text.c_str()}, [&] { CustomOpLibrary::open(text); }));
  EXPECT_TRUE(throws(ErrorKind::fail, {"not_there.so"}, [&] { CustomOpLibrary::open(folder / "not_there.so"); }));
  EXPECT_TRUE(throws(ErrorKind::fail, {"RegisterCustomOps"}, [] { CustomOpLibrary::open("libm.so.6"); }));
}

}  // namespace
}  // namespace ortmulti::tests
