// What GPUs cost, and what of their rate is used.
#include "gpus.hpp"

#include <cmath>

#include <gtest/gtest.h>

#include "simulated_trace.hpp"

namespace voltapile {
namespace {

GpuSample sample(int64_t step, double seconds, double joules) {
  return {.step = step,
          .time_ns = test::kBegin + std::llround(1e9 * seconds),
          .utilisation = 0.5,
          .nvlink_sent_bytes = 10 * seconds,
          .energy_joules = joules};
}

TEST(GpuFigures, CountEnergyFromTheFirstStepOnAndAcrossSessions) {
  Trace trace{.ranks = {{.place = "rank 0"}, {.place = "rank 1"}, {.place = "no GPU"}}};
  // Start-up, four steps of 50 J in 2 s; then another session, whose counter starts anew.
  trace.ranks[0].gpu_samples = {sample(0, 0, 0),     sample(1, 9, 900), sample(3, 10, 1000),
                                sample(5, 11, 1100), sample(3, 100, 0), sample(4, 101, 50),
                                sample(6, 102, 150)};
  trace.ranks[1].gpu_samples = {sample(1, 9, 0), sample(5, 13, 40)};
  const auto figures = gpu_figures(trace, 8);
  ASSERT_TRUE(figures);
  ASSERT_EQ(figures->gpus.size(), 2u);
  EXPECT_DOUBLE_EQ(figures->gpus[0].watts, 350.0 / 4);
  EXPECT_DOUBLE_EQ(figures->gpus[1].watts, 10);
  EXPECT_DOUBLE_EQ(figures->watts, 350.0 / 4 + 10);
  EXPECT_DOUBLE_EQ(figures->joules_per_sample, (350.0 / 7 + 10) / 8);
  EXPECT_DOUBLE_EQ(samples_per_kwh(*figures), 3.6e6 / 7.5);
  EXPECT_DOUBLE_EQ(epoch_kwh(*figures, 480'000), 1);
  EXPECT_DOUBLE_EQ(figures->gpus[0].utilisation, 0.5);
  EXPECT_DOUBLE_EQ(figures->gpus[1].nvlink_sent, 10);
  EXPECT_TRUE(std::isnan(figures->gpus[0].hottest_celsius));
}

TEST(GpuFigures, AreMeansOfTheSamplesAndGpusThatTell) {
  Trace trace{.ranks = {{.place = "rank 0"}, {.place = "rank 1"}, {.place = "rank 2"}}};
  for (RankRecord& rank : trace.ranks)
    rank.gpu_samples = {sample(1, 0, 0), sample(2, 1, 10), sample(3, 2, 20)};
  // One too soon after its session's first look knows no activity; a GPU before Hopper never does.
  trace.ranks[0].gpu_samples[1].sm_activity = 0.2;
  trace.ranks[0].gpu_samples[2].sm_activity = 0.4;
  trace.ranks[2].gpu_samples[2].sm_activity = 0.5;
  const auto figures = gpu_figures(trace, 8);
  ASSERT_TRUE(figures);
  EXPECT_DOUBLE_EQ(figures->gpus[0].sm_activity, 0.3);
  EXPECT_TRUE(std::isnan(figures->gpus[1].sm_activity));
  EXPECT_DOUBLE_EQ(figures->sm_activity, 0.4);
  EXPECT_DOUBLE_EQ(figures->utilisation, 0.5);
  EXPECT_TRUE(std::isnan(figures->gpus[0].tensor_activity));
}

TEST(GpuFigures, AreNotThereWithoutAStep) {
  Trace trace{.ranks = {{.place = "rank 0"}}};
  EXPECT_FALSE(gpu_figures(trace, 8));
  trace.ranks[0].gpu_samples = {sample(0, 0, 0), sample(0, 1, 100), sample(1, 2, 200)};
  EXPECT_FALSE(gpu_figures(trace, 8)) << "only start-up lies between samples";
}

TEST(PeakRate, IsTheDatasheetsForTheNameThatTheDriverGives) {
  const auto rate = [](const char* name, DType type, bool tf32 = false) {
    const auto peak = peak_rate(name, type, tf32);
    return peak ? 1e-12 * peak->flops_per_second : 0;
  };
  EXPECT_DOUBLE_EQ(rate("cuda, Tesla V100-SXM2-32GB (sm_70, 34.1 GB)", DType::f16), 125);
  EXPECT_DOUBLE_EQ(rate("cuda, Tesla V100-PCIE-16GB (sm_70, 16.9 GB)", DType::f16), 112);
  EXPECT_DOUBLE_EQ(rate("cuda, Tesla V100-SXM2-32GB (sm_70, 34.1 GB)", DType::bf16), 0);
  EXPECT_DOUBLE_EQ(rate("cuda, Tesla V100-SXM2-32GB (sm_70, 34.1 GB)", DType::f32), 15.7);
  EXPECT_DOUBLE_EQ(rate("cuda, NVIDIA A100-SXM4-80GB (sm_80, 85.1 GB)", DType::f32, true), 156);
  EXPECT_DOUBLE_EQ(rate("cuda, NVIDIA H100 80GB HBM3 (sm_90, 85 GB)", DType::bf16), 989.5);
  EXPECT_DOUBLE_EQ(rate("cuda, NVIDIA H100 PCIe (sm_90, 85 GB)", DType::bf16), 756.5);
  EXPECT_DOUBLE_EQ(rate("cuda, NVIDIA H200 (sm_90, 150 GB)", DType::f16), 989.5);
  EXPECT_DOUBLE_EQ(rate("cpu, 2 threads", DType::f32), 0);
}

}  // namespace
}  // namespace voltapile
