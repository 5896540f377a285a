#include <gtest/gtest.h>

#include <climits>
#include <string>
#include <string_view>

#include "core/base/device.hpp"
#include "test_support.hpp"

namespace ortmulti::tests {
namespace {

TEST(Device, ThoseOfPluginsHaveAProviderATypeAndAnIndex) {
  EXPECT_EQ(parse_device("OpenVINO.Auto:cpu"), Device::plugin("openvino.auto:CPU", 0));
  EXPECT_EQ(parse_device("openvino:gpu.12"), Device::plugin("openvino:GPU", 12));
  EXPECT_NE(parse_device("openvino:GPU"), parse_device("other:GPU"));
  EXPECT_NE(parse_device("openvino:GPU"), parse_device("openvino:GPU.1"));
  for (const char* name : {"openvino:CPU", "openvino:NPU.3"}) {
    EXPECT_EQ(to_string(parse_device(name)), name);
  }
  for (const char* name : {"openvino:", ":CPU", "openvino:CPU.", "openvino:CPU.-1", "openvino:CPUs", "a b:CPU"}) {
    EXPECT_THROW(static_cast<void>(parse_device(name)), Error) << name;
  }
}

TEST(Device, IsPrintedAsItIsParsed) {
  for (const char* text : {"cpu", "cuda:0", "cuda:3", "cuda:127"}) {
    EXPECT_EQ(to_string(parse_device(text)), text);
  }
  EXPECT_EQ(parse_device("cuda"), Device::cuda(0));
  EXPECT_EQ(parse_device("cuda:" + std::to_string(INT_MAX)), Device::cuda(INT_MAX));
  EXPECT_FALSE(parse_device("cpu").is_cuda());
  EXPECT_TRUE(parse_device("cuda:1").is_cuda());
}

TEST(Device, DiffersByKindAndIndex) {
  EXPECT_NE(Device::cpu(), Device::cuda(0));
  EXPECT_NE(Device::cuda(0), Device::cuda(1));
  EXPECT_EQ(Device::cuda(1), Device::cuda(1));
}

TEST(Device, RefusesEverythingElse) {
  using std::string_view_literals::operator""sv;
  for (const std::string_view text : {""sv,
                                      " "sv,
                                      "cpu:0"sv,
                                      "CPU"sv,
                                      "cpu "sv,
                                      " cpu"sv,
                                      "gpu"sv,
                                      "all"sv,
                                      "0"sv,
                                      "cuda:"sv,
                                      "cuda:-1"sv,
                                      "cuda:-0"sv,
                                      "cuda:+1"sv,
                                      "cuda: 1"sv,
                                      "cuda:1 "sv,
                                      "cuda:1x"sv,
                                      "cuda:0x1"sv,
                                      "cuda:1.0"sv,
                                      "cuda:1:2"sv,
                                      "cuda:2147483648"sv,
                                      "cuda:99999999999999999999"sv,
                                      "cuda0"sv,
                                      "cud"sv,
                                      "cuda:\0"sv,
                                      "cpu\0"sv,
                                      "cuda:1\0"sv,
                                      "\xff\xfe"sv}) {
    EXPECT_TRUE(throws(ErrorKind::invalid_argument, {"unknown device"}, [&] { parse_device(text); }))
        << "'" << text << "'";
  }
  EXPECT_TRUE(throws(ErrorKind::invalid_argument, {"'gpu:0'", "cuda:N"}, [] { parse_device("gpu:0"); }));
  EXPECT_TRUE(throws(ErrorKind::invalid_argument, {"did you mean 'cuda:1'?"}, [] { parse_device("CUDA:1"); }));
  EXPECT_FALSE(throws(ErrorKind::invalid_argument, {"did you mean"}, [] { parse_device("openvino:XPU"); }));
  EXPECT_TRUE(throws(ErrorKind::invalid_argument, {}, [] { parse_device(std::string(100000, '1')); }));
}

class NvidiaHardware : public testing::Test {
 protected:
  void add_pci_device(const std::string& address, const std::string& vendor, const std::string& device_class) {
    sysfs.write("bus/pci/devices/" + address + "/vendor", vendor);
    sysfs.write("bus/pci/devices/" + address + "/class", device_class);
  }
  bool found() const { return has_nvidia_hardware(sysfs.path()); }

  TemporaryFolder sysfs;
};

TEST_F(NvidiaHardware, IsFoundAmongOtherDevices) {
  add_pci_device("0000:00:00.0", "0x8086\n", "0x060000\n");
  EXPECT_FALSE(found());
  add_pci_device("0000:3b:00.0", "0x10de\n", "0x030200\n");  // a GPU without a display
  EXPECT_TRUE(found());
}

TEST_F(NvidiaHardware, MayHaveADisplay) {
  add_pci_device("0000:01:00.0", "0x10de\n", "0x030000\n");
  EXPECT_TRUE(found());
}

TEST_F(NvidiaHardware, IsNoSoundOrNetworkOrOtherVendors) {
  add_pci_device("0000:01:00.1", "0x10de\n", "0x040300\n");
  add_pci_device("0000:02:00.0", "0x10de\n", "0x020700\n");
  add_pci_device("0000:03:00.0", "0x1002\n", "0x030000\n");
  EXPECT_FALSE(found());
}

TEST_F(NvidiaHardware, SurvivesATreeThatIsNotThereOrIncomplete) {
  EXPECT_FALSE(found());
  EXPECT_FALSE(has_nvidia_hardware(""));
  sysfs.write("bus/pci/devices/0000:01:00.0/vendor", "0x10de\n");  // no class
  sysfs.write("bus/pci/devices/0000:02:00.0/class", "0x030000\n");
  sysfs.write("bus/pci/devices/stray", "0x10de 0x030000");
  add_pci_device("0000:03:00.0", "", "");
  EXPECT_FALSE(found());
}

}  // namespace
}  // namespace ortmulti::tests
