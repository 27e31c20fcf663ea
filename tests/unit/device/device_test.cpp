// Lanes and memory of every device: order, waits, failures, repetition, destruction.
#include "voltapile/device/device.hpp"

#include <atomic>
#include <chrono>
#include <cstring>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "voltapile/base/clock.hpp"
#include "voltapile/base/error.hpp"
#include "voltapile/device/kernels.hpp"

#include "gpu.hpp"

namespace voltapile {
namespace {

constexpr Lane kLanes[] = {Lane::compute, Lane::pipe_in, Lane::pipe_out, Lane::dp,
                           Lane::h2d,     Lane::d2h,     Lane::host};

enum class Backend { cpu, cuda };

// Work that another thread lets go.
struct Gate {
  std::promise<void> open;
  std::shared_future<void> opened = open.get_future().share();
  auto wait() {
    return [opened = opened] { opened.wait(); };
  }
};

std::string message_of(const std::function<void()>& f) {
  try {
    f();
  } catch (const Error& error) { return error.what(); }
  return "nothing was thrown";
}

class Lanes : public testing::TestWithParam<Backend> {
 protected:
  void SetUp() override {
    if (GetParam() == Backend::cuda) {
      if (const std::string why = why_no_gpu(); !why.empty()) GTEST_SKIP() << why;
      device_ = make_cuda_device({});
    } else {
      device_ = make_cpu_device(2);
    }
  }
  Device& device() { return *device_; }

 private:
  std::unique_ptr<Device> device_;
};
INSTANTIATE_TEST_SUITE_P(Every, Lanes, testing::Values(Backend::cpu, Backend::cuda),
                         [](const auto& info) {
                           return info.param == Backend::cpu ? "cpu" : "cuda";
                         });

TEST_P(Lanes, a_lane_runs_its_work_in_order) {
  Stream& stream = device().stream(Lane::compute);
  std::vector<int> seen;
  for (int i = 0; i < 1000; ++i) stream.run_on_host([&seen, i] { seen.push_back(i); });
  device().wait_on_host(device().record(stream));
  ASSERT_EQ(seen.size(), 1000u);
  for (int i = 0; i < 1000; ++i) EXPECT_EQ(seen[static_cast<size_t>(i)], i);
}

TEST_P(Lanes, lanes_are_independent) {
  Gate gate;
  device().stream(Lane::pipe_in).run_on_host(gate.wait());
  bool ran = false;
  device().stream(Lane::compute).run_on_host([&] { ran = true; });
  device().wait_on_host(device().record(device().stream(Lane::compute)));
  EXPECT_TRUE(ran) << "while pipe_in was still blocked";
  gate.open.set_value();
}

TEST_P(Lanes, a_wait_orders_lanes_without_blocking_the_host) {
  Stream &first = device().stream(Lane::dp), &second = device().stream(Lane::compute);
  Gate gate;
  int order = 0, at_first = 0, at_second = 0;
  first.run_on_host(gate.wait());
  first.run_on_host([&] { at_first = ++order; });
  device().wait(second, device().record(first));
  second.run_on_host([&] { at_second = ++order; });
  gate.open.set_value();  // reached, so the host was not blocked
  device().wait_on_host(device().record(second));
  EXPECT_EQ(at_first, 1);
  EXPECT_EQ(at_second, 2);
}

TEST_P(Lanes, an_event_covers_what_was_enqueued_before_it_only) {
  Stream& stream = device().stream(Lane::compute);
  bool before = false;
  stream.run_on_host([&] { before = true; });
  const Event event = device().record(stream);
  Gate gate;
  stream.run_on_host(gate.wait());
  device().wait_on_host(event);
  EXPECT_TRUE(before);
  device().wait_on_host(Event{});  // has always happened
  gate.open.set_value();
}

TEST_P(Lanes, rings_of_waits_between_all_lanes_keep_their_order) {
  std::atomic<int> next{0};
  std::vector<int> seen(7 * 200, -1);
  Event last;
  for (int i = 0; i < 7 * 200; ++i) {
    Stream& stream = device().stream(kLanes[i % 7]);
    device().wait(stream, last);
    stream.run_on_host([&, i] { seen[static_cast<size_t>(i)] = next++; });
    last = device().record(stream);
  }
  device().wait_on_host(last);
  for (int i = 0; i < 7 * 200; ++i) EXPECT_EQ(seen[static_cast<size_t>(i)], i);
}

TEST_P(Lanes, the_first_failure_skips_later_work_and_is_rethrown_by_every_wait) {
  Stream &bad = device().stream(Lane::dp), &other = device().stream(Lane::compute);
  bool ran = false;
  bad.run_on_host([] { throw Error(ExitCode::bad_data, "the first"); });
  bad.run_on_host([] { throw Error(ExitCode::failure, "the second"); });
  device().wait(other, device().record(bad));
  other.run_on_host([&] { ran = true; });
  EXPECT_EQ(message_of([&] { device().wait_on_host(device().record(other)); }), "the first");
  EXPECT_EQ(message_of([&] { device().wait_on_host(device().record(bad)); }), "the first");
  EXPECT_EQ(message_of([&] { device().wait_on_host(Event{}); }), "the first");
  EXPECT_FALSE(ran);
}

TEST_P(Lanes, a_failure_wakes_a_host_that_waits_on_a_lane_that_waits_on_another) {
  Gate gate;
  device().stream(Lane::pipe_in).run_on_host(gate.wait());
  device().wait(device().stream(Lane::compute), device().record(device().stream(Lane::pipe_in)));
  std::thread other([&] { device().fail("rank 3 is gone"); });
  EXPECT_EQ(
      message_of([&] { device().wait_on_host(device().record(device().stream(Lane::compute))); }),
      "rank 3 is gone");
  other.join();
  EXPECT_EQ(message_of([&] { device().wait_on_host(Event{}); }), "rank 3 is gone");
  gate.open.set_value();
}

TEST_P(Lanes, an_exception_that_is_not_ours_is_rethrown_as_it_is) {
  Stream& stream = device().stream(Lane::host);
  stream.run_on_host([] { throw std::out_of_range("elsewhere"); });
  EXPECT_THROW(device().wait_on_host(device().record(stream)), std::out_of_range);
}

TEST_P(Lanes, marks_follow_the_host_clock_and_each_other) {
  const Buffer memory = device().allocate_host(3 * sizeof(double), "marks");
  auto* seconds = reinterpret_cast<double*>(memory.data());
  Stream &first = device().stream(Lane::compute), &second = device().stream(Lane::dp);
  const double before = now_seconds();
  device().mark(first, seconds);
  first.run_on_host([] { std::this_thread::sleep_for(std::chrono::milliseconds(20)); });
  device().mark(first, seconds + 1);
  device().wait(second, device().record(first));
  device().mark(second, seconds + 2);
  device().wait_on_host(device().record(second));
  const double after = now_seconds(), slack = 1e-3;  // of the two clocks
  EXPECT_LE(before - slack, seconds[0]);
  EXPECT_LE(seconds[0] + 0.019, seconds[1]);
  EXPECT_LE(seconds[1], seconds[2]);
  EXPECT_LE(seconds[2], after + slack);
}

TEST_P(Lanes, repeated_work_does_the_same_each_time_on_what_is_there_then) {
  Stream& stream = device().stream(Lane::compute);
  const Buffer host = device().allocate_host(4 * sizeof(float), "numbers"),
               memory = device().allocate(4 * sizeof(float), "sums");
  auto* values = reinterpret_cast<float*>(host.data());
  const TensorView all{memory.data(), DType::f32, {4}};
  device().kernels().fill(all, 1, stream);
  for (int time = 0; time < 5; ++time) {
    device().repeat(stream, 42, [&] { device().kernels().add(all, all, all, stream); });
    device().repeat(stream, 43, [&] {
      device().kernels().add(all, all, all, stream);
      device().kernels().add(all, all, all, stream);
    });
  }
  device().copy(values, memory.data(), memory.bytes(), stream);
  device().wait_on_host(device().record(stream));
  for (int i = 0; i < 4; ++i) EXPECT_EQ(values[i], 32768) << "doubled 3 times 5 times";
}

TEST_P(Lanes, many_events_and_host_calls_leave_nothing_behind) {
  Stream &first = device().stream(Lane::compute), &second = device().stream(Lane::dp);
  std::vector<Event> events;
  int ran = 0;
  for (int i = 0; i < 5000; ++i) {
    events.push_back(device().record(first));
    device().wait(second, events[static_cast<size_t>(i / 2)]);  // recent ones and long past ones
    if (i % 100 == 0) second.run_on_host([&ran] { ++ran; });
  }
  device().wait_on_host(device().record(second));
  device().wait_until_idle();
  EXPECT_EQ(ran, 50);
}

TEST(CudaDevice, keeps_to_its_memory_limit_and_says_what_holds_it) {
  if (const std::string why = why_no_gpu(); !why.empty()) GTEST_SKIP() << why;
  CudaOptions options;
  options.memory_limit_bytes = size_t{4} << 30;
  const auto device = make_cuda_device(options);
  const Buffer held = device->allocate(size_t{2} << 30, "weights");
  const std::string message = message_of([&] { device->allocate(size_t{2} << 30, "activations"); });
  for (const char* part : {"activations", "memory.device_limit", "weights", "driver and libraries"})
    EXPECT_NE(message.find(part), std::string::npos) << part << " in: " << message;
}

TEST(CpuDevice, destruction_waits_for_running_work_and_drops_what_has_not_started) {
  auto alive = std::make_shared<int>(0);
  bool finished = false, ran = false;
  Gate gate;
  std::promise<void> started;
  auto device = make_cpu_device(2);
  Stream &first = device->stream(Lane::pipe_in), &second = device->stream(Lane::compute);
  first.run_on_host([&, wait = gate.wait()] {
    started.set_value();
    wait();
    finished = true;
  });
  device->wait(second, Event{&first, 1000});  // never comes: only the destructor can end this
  for (int i = 0; i < 50; ++i) second.run_on_host([&ran, alive] { ran = true; });
  EXPECT_EQ(alive.use_count(), 51);
  started.get_future().wait();
  std::thread destroyer([&] { device.reset(); });
  gate.open.set_value();
  destroyer.join();
  EXPECT_TRUE(finished);
  EXPECT_FALSE(ran);
  EXPECT_EQ(alive.use_count(), 1) << "closures of dropped work were destroyed";
}

TEST_P(Lanes, memory_is_aligned_poisoned_and_counted) {
  const size_t before = device().allocated_bytes();
  {
    const Buffer a = device().allocate(1000, "a"), b = device().allocate_host(1000, "b"),
                 empty = device().allocate(0, "nothing");
    EXPECT_EQ(reinterpret_cast<uintptr_t>(a.data()) % 256, 0u);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(b.data()) % 256, 0u);
    EXPECT_EQ(a.bytes(), 1000u);
    // A CPU's pinned memory is the device's too.
    const size_t both = GetParam() == Backend::cpu ? 2000 : 1000;
    EXPECT_EQ(device().allocated_bytes() - before, both);
    for (size_t i = 0; i < b.bytes(); ++i) ASSERT_EQ(std::to_integer<int>(b.data()[i]), 0xff);
    std::memset(b.data(), 0, b.bytes());
    Stream& stream = device().stream(Lane::d2h);
    device().copy(b.data(), a.data(), a.bytes(), stream);
    device().wait_on_host(device().record(stream));
    for (size_t i = 0; i < b.bytes(); ++i) ASSERT_EQ(std::to_integer<int>(b.data()[i]), 0xff);
  }
  EXPECT_EQ(device().allocated_bytes(), before);
}

TEST(CpuDevice, a_buffer_may_outlive_its_device) {
  auto device = make_cpu_device(1);
  const Buffer buffer = device->allocate(100, "kept");
  device.reset();
  std::memset(buffer.data(), 1, buffer.bytes());
}

TEST(CpuDevice, memory_that_does_not_exist_is_an_error_that_names_it) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer's allocator ends the program instead of refusing";
#endif
  const auto device = make_cpu_device(1);
  try {
    const Buffer buffer = device->allocate(size_t{1} << 60, "moments of chunk 3");
    FAIL() << "an exbibyte was allocated";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::does_not_fit);
    EXPECT_NE(std::string(error.what()).find("moments of chunk 3"), std::string::npos);
  }
}

TEST_P(Lanes, copies_take_their_turn_in_the_lane) {
  Stream& stream = device().stream(Lane::h2d);
  const Buffer memory = device().allocate_host(2 * sizeof(int), "numbers");
  int &source = reinterpret_cast<int*>(memory.data())[0],
      &target = reinterpret_cast<int*>(memory.data())[1];
  stream.run_on_host([&] { source = 2; });
  device().copy(&target, &source, sizeof(int), stream);
  stream.run_on_host([&] { source = 3; });
  device().wait_on_host(device().record(stream));
  EXPECT_EQ(target, 2);
}

TEST_P(Lanes, a_wrong_shape_is_refused_when_the_kernel_is_called) {
  float x[6], w[6], y[4];
  EXPECT_THROW(device().kernels().linear({x, DType::f32, {2, 3}}, {w, DType::f32, {3, 2}}, {},
                                         {y, DType::f32, {2, 2}}, device().stream(Lane::compute)),
               Error);
}

TEST(NoCuda, a_deck_that_asks_for_it_is_told_what_to_do) {
  if (cuda_is_built()) GTEST_SKIP() << "this build has CUDA";
  try {
    make_cuda_device({});
    FAIL() << "a CUDA device was made";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::bad_input);
    EXPECT_NE(std::string(error.what()).find("run.device = \"cpu\""), std::string::npos);
  }
}

}  // namespace
}  // namespace voltapile
