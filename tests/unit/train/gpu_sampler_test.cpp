// A GPU's own figures, from a library that stands for NVML: the first argument.
#include "gpu_sampler.hpp"

#include <thread>

#include <gtest/gtest.h>

#include "voltapile/base/error.hpp"

#include "../../support/small_run.hpp"

namespace voltapile {
namespace {

std::string fake_nvml;
const std::string kVolta = "0000:FF:1F.0", kOlder = "0000:FF:1F.1";

TEST(GpuSampler, ReadsEveryFigureInItsUnit) {
  ASSERT_FALSE(fake_nvml.empty()) << "the first argument is the library";
  GpuSampler sampler(kVolta, 3600, fake_nvml);
  sampler.set_step(7);
  const std::vector<GpuSample> samples = sampler.take();
  ASSERT_EQ(samples.size(), 2u) << "one at the start, one of now";
  const GpuSample &first = samples[0], &last = samples[1];
  EXPECT_EQ(first.step, 0);
  EXPECT_EQ(last.step, 7);
  EXPECT_LT(first.time_ns, last.time_ns);
  EXPECT_DOUBLE_EQ(last.utilisation, 0.9);
  EXPECT_DOUBLE_EQ(last.memory_utilisation, 0.4);
  EXPECT_EQ(last.memory_bytes, 0);
  EXPECT_DOUBLE_EQ(last.power_watts, 290);
  EXPECT_DOUBLE_EQ(last.sm_clock_hz, 1530e6);
  EXPECT_DOUBLE_EQ(last.memory_clock_hz, 877e6);
  EXPECT_DOUBLE_EQ(last.temperature_celsius, 61);
  EXPECT_DOUBLE_EQ(last.pcie_received_bytes_per_second, 5e6);
  EXPECT_DOUBLE_EQ(last.pcie_sent_bytes_per_second, 3e6);
  // Counters run from the session's first look on, not from the driver's start.
  EXPECT_EQ(first.energy_joules, 0);
  EXPECT_DOUBLE_EQ(last.energy_joules, 250);
  EXPECT_EQ(first.nvlink_received_bytes, 0);
  EXPECT_DOUBLE_EQ(last.nvlink_received_bytes, 20 * 1024);
  EXPECT_DOUBLE_EQ(last.nvlink_sent_bytes, 10 * 1024);
  std::this_thread::sleep_for(std::chrono::milliseconds(110));  // gpu_activity_test has the figures
  EXPECT_NEAR(sampler.take().front().sm_activity, 0.10, 0.01);
  EXPECT_EQ(sampler.take().size(), 1u) << "what was taken is not taken again";
}

TEST(GpuSampler, AddsPowerOverTimeWhereTheGpuCountsNoEnergy) {
  GpuSampler sampler(kOlder, 3600, fake_nvml);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  const std::vector<GpuSample> samples = sampler.take();
  const double seconds = 1e-9 * static_cast<double>(samples[1].time_ns - samples[0].time_ns);
  EXPECT_EQ(samples[0].energy_joules, 0);
  EXPECT_EQ(samples[0].memory_bytes, 12e9);
  EXPECT_NEAR(samples[1].energy_joules, 100 * seconds, 1e-9);
  EXPECT_TRUE(std::isnan(samples[1].nvlink_received_bytes)) << "unknown, not none";
}

TEST(GpuSampler, LooksByItselfAtEvenTimes) {
  GpuSampler sampler(kVolta, 0.001, fake_nvml);
  for (int64_t step = 1; step <= 20; ++step) {
    sampler.set_step(step);
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  const std::vector<GpuSample> samples = sampler.take();
  ASSERT_GT(samples.size(), 10u);
  for (size_t i = 1; i < samples.size(); ++i) {
    EXPECT_LT(samples[i - 1].time_ns, samples[i].time_ns);
    EXPECT_LT(samples[i - 1].energy_joules, samples[i].energy_joules);
    EXPECT_LE(samples[i - 1].step, samples[i].step);
  }
}

TEST(GpuSampler, NamesTheLibraryThatCannotServe) {
  const auto why = [](const std::string& address, const std::string& library) -> std::string {
    try {
      GpuSampler sampler(address, 1, library);
    } catch (const Error& error) { return error.what(); }
    return "no error";
  };
  EXPECT_NE(why(kVolta, "libno-such.so.1").find("libno-such.so.1: does not answer"),
            std::string::npos);
  EXPECT_NE(why("0000:00:00.0", fake_nvml).find("knows no GPU at 0000:00:00.0"), std::string::npos);
}

TEST(SampleGpu, IsNoneWithoutAGpuOrTime) {
  spawn_ranks(2, [](std::unique_ptr<Communicator> world) {
    EXPECT_EQ(sample_gpu("", 1, *world), nullptr);
    EXPECT_EQ(sample_gpu("0000:00:00.0", 0, *world), nullptr);
  });
}

}  // namespace
}  // namespace voltapile

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  if (argc > 1) voltapile::fake_nvml = argv[1];
  return RUN_ALL_TESTS();
}
