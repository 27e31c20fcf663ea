// What of a GPU works, from libraries that stand for NVML: the first argument has GPM on GPU 0, the
// second is of an older driver, without any of its calls.
#include "gpu_activity.hpp"

#include <cmath>
#include <cstdlib>
#include <string>
#include <utility>

#include <gtest/gtest.h>

namespace voltapile {
namespace {

std::string fake_nvml, older_nvml;

struct Gpu {
  Gpu(const std::string& library, const char* address) : nvml(library) {
    EXPECT_TRUE(nvml.start() && nvml.call("nvmlDeviceGetHandleByPciBusId_v2", address, &handle))
        << library;
  }
  Nvml nvml;
  Nvml::Gpu handle = nullptr;
};

GpuSample look(GpuActivity& activity, double seconds) {
  GpuSample sample;
  activity.look(seconds, sample);
  return sample;
}

bool is_unknown(const GpuSample& sample) {
  return std::isnan(sample.sm_activity) && std::isnan(sample.tensor_activity) &&
         std::isnan(sample.sm_occupancy) && std::isnan(sample.memory_bandwidth_utilisation);
}

TEST(GpuActivity, IsOfTheTimeBetweenTwoLooks) {
  Gpu gpu(fake_nvml, "0000:FF:1F.0");
  GpuActivity activity(gpu.nvml, gpu.handle);
  EXPECT_TRUE(is_unknown(look(activity, 50))) << "nothing lies before the first look";
  const GpuSample second = look(activity, 51);
  EXPECT_DOUBLE_EQ(second.sm_activity, 0.1012);  // metric 2 between samples 1 and 2
  EXPECT_DOUBLE_EQ(second.tensor_activity, 0.2512);
  EXPECT_DOUBLE_EQ(second.memory_bandwidth_utilisation, 0.5012);
  EXPECT_TRUE(std::isnan(second.sm_occupancy)) << "this one was refused";
  EXPECT_DOUBLE_EQ(look(activity, 52).sm_activity, 0.1023);
}

TEST(GpuActivity, KeepsTheOlderLookWhereTheNextComesTooSoon) {
  Gpu gpu(fake_nvml, "0000:FF:1F.0");
  GpuActivity activity(gpu.nvml, gpu.handle);
  look(activity, 50);
  EXPECT_TRUE(is_unknown(look(activity, 50.09)));
  EXPECT_DOUBLE_EQ(look(activity, 50.11).sm_activity, 0.1012) << "from the first look on";
  EXPECT_DOUBLE_EQ(look(activity, 50.2).sm_activity, 0.1012) << "what is known of the last 0.1 s";
  EXPECT_DOUBLE_EQ(look(activity, 50.22).sm_activity, 0.1023) << "no look between was kept";
}

TEST(GpuActivity, IsUnknownWhereTheGpuOrItsDriverHasNone) {
  for (const auto& [library, address] :
       {std::pair(fake_nvml, "0000:FF:1F.1"), std::pair(older_nvml, "0000:FF:1F.0")}) {
    Gpu gpu(library, address);
    GpuActivity activity(gpu.nvml, gpu.handle);
    look(activity, 50);
    EXPECT_TRUE(is_unknown(look(activity, 51)));
  }
}

TEST(GpuActivity, IsUnknownWhileTheDriverRefuses) {
  Gpu gpu(fake_nvml, "0000:FF:1F.0");
  GpuActivity activity(gpu.nvml, gpu.handle);
  look(activity, 50);
  look(activity, 51);
  ::setenv("FAKE_GPM_REFUSES", "1", 1);
  EXPECT_TRUE(is_unknown(look(activity, 52))) << "not what was known before";
  ::unsetenv("FAKE_GPM_REFUSES");
  EXPECT_DOUBLE_EQ(look(activity, 53).sm_activity, 0.1023) << "of the two seconds since 51";
}

TEST(GpuActivity, FreesItsSamples) {
  Gpu gpu(fake_nvml, "0000:FF:1F.0");
  const auto alive = [&] {
    int count = -1;
    gpu.nvml.call("fake_gpm_samples", &count);
    return count;
  };
  {
    GpuActivity activity(gpu.nvml, gpu.handle);
    look(activity, 50);
    look(activity, 51);
    EXPECT_EQ(alive(), 2);
  }
  EXPECT_EQ(alive(), 0);
}

}  // namespace
}  // namespace voltapile

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  if (argc > 1) voltapile::fake_nvml = argv[1];
  if (argc > 2) voltapile::older_nvml = argv[2];
  return RUN_ALL_TESTS();
}
