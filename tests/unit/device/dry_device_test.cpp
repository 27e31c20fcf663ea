// The dry device counts what a run would allocate and do.
#include <gtest/gtest.h>

#include "voltapile/base/error.hpp"
#include "voltapile/device/dry.hpp"
#include "voltapile/device/kernels.hpp"

namespace voltapile {
namespace {

TEST(DryDevice, allocations_are_counted_by_name_with_their_peak) {
  const auto device = make_dry_device();
  const DryCounters& counters = dry_counters(*device);
  {
    const Buffer a = device->allocate(1000, "weights"), b = device->allocate(500, "weights"),
                 c = device->allocate_host(70, "moments");
    EXPECT_NE(a.data(), nullptr);
    EXPECT_GE(b.data() - a.data(), 1000) << "buffers do not overlap";
    EXPECT_EQ(reinterpret_cast<uintptr_t>(b.data()) % 256, 0u);
    EXPECT_EQ(device->allocated_bytes(), 1500u);
    EXPECT_EQ(counters.device_memory.at("weights").live, 2);
    EXPECT_EQ(counters.device_memory.at("weights").bytes, 1500u);
    EXPECT_EQ(counters.host_memory.at("moments").bytes, 70u);
  }
  EXPECT_EQ(device->allocated_bytes(), 0u);
  EXPECT_EQ(counters.device_memory.at("weights").peak_bytes, 1500u);
  EXPECT_EQ(counters.peak_device_bytes, 1500u);
  EXPECT_EQ(counters.peak_host_bytes, 70u);
}

TEST(DryDevice, a_terabyte_costs_nothing) {
  const auto device = make_dry_device();
  const Buffer buffer = device->allocate(size_t{1} << 42, "everything");
  EXPECT_EQ(device->allocated_bytes(), size_t{1} << 42);
}

TEST(DryDevice, kernels_count_calls_flops_and_bytes) {
  const auto device = make_dry_device();
  Stream& stream = device->stream(Lane::compute);
  const auto tensor = [&](Shape shape) {
    return TensorView{reinterpret_cast<void*>(uintptr_t{1} << 56), DType::f16, shape};
  };
  Kernels& k = device->kernels();
  for (int i = 0; i < 3; ++i)
    k.linear(tensor({10, 4}), tensor({6, 4}), tensor({6}), tensor({10, 6}), stream);
  const TensorView qkv = tensor({2, 5, 3, 4, 8}), out = tensor({2, 5, 4, 8});
  TensorView lse = tensor({2, 4, 5});
  lse.dtype = DType::f32;
  k.attention(qkv, {}, out, lse, stream);
  k.attention_backward(out, qkv, {}, out, lse, qkv, stream);
  const DryCounters& counters = dry_counters(*device);
  const KernelCount& linear = counters.kernels.at("linear");
  EXPECT_EQ(linear.calls, 3);
  EXPECT_EQ(linear.flops, 3 * 2.0 * 10 * 4 * 6);
  EXPECT_EQ(linear.bytes, 3 * 2.0 * (40 + 24 + 6 + 60));
  // (T,T,D) products of 2 * 4 heads: two forward, five backward.
  const double product = 2.0 * 5 * 5 * 8 * 2 * 4;
  EXPECT_EQ(counters.kernels.at("attention").flops, 2 * product);
  EXPECT_EQ(counters.kernels.at("attention_backward").flops, 5 * product);
  EXPECT_EQ(counters.flops(), 3 * 480 + 7 * product);
}

TEST(DryDevice, shapes_are_checked_as_on_a_real_device) {
  const auto device = make_dry_device();
  const auto tensor = [&](Shape shape) {
    return TensorView{reinterpret_cast<void*>(uintptr_t{1} << 56), DType::f32, shape};
  };
  EXPECT_THROW(device->kernels().linear(tensor({2, 3}), tensor({4, 5}), {}, tensor({2, 4}),
                                        device->stream(Lane::compute)),
               Error);
}

TEST(DryDevice, copies_and_host_work_are_counted_by_lane_and_not_done) {
  const auto device = make_dry_device();
  Stream& stream = device->stream(Lane::d2h);
  int source = 1, target = 2;
  device->copy(&target, &source, sizeof(int), stream);
  stream.run_on_host([&] { target = 3; });
  device->wait_on_host(device->record(stream));
  EXPECT_EQ(target, 2);
  const DryCounters& counters = dry_counters(*device);
  EXPECT_EQ(counters.copies[static_cast<size_t>(Lane::d2h)], 1);
  EXPECT_EQ(counters.copied_bytes[static_cast<size_t>(Lane::d2h)], 4);
  EXPECT_EQ(counters.host_calls[static_cast<size_t>(Lane::d2h)], 1);
  EXPECT_EQ(counters.host_calls[static_cast<size_t>(Lane::compute)], 0);
}

TEST(DryDevice, a_failure_is_thrown_by_later_waits) {
  const auto device = make_dry_device();
  device->fail("rank 1 is gone");
  EXPECT_THROW(device->wait_on_host(device->record(device->stream(Lane::compute))), Error);
}

TEST(DryDevice, counters_of_another_device_are_a_fault) {
  const auto device = make_cpu_device(1);
  EXPECT_THROW(dry_counters(*device), Error);
}

}  // namespace
}  // namespace voltapile
