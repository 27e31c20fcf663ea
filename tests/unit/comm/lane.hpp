// A lane of a CPU device, for communicator tests.
#pragma once
#include <memory>
#include <utility>

#include "voltapile/device/device.hpp"

namespace voltapile::testing {

class TestLane {
 public:
  TestLane() : TestLane(make_cpu_device(1), Lane::compute) {}
  // Several lanes of one device.
  TestLane(std::shared_ptr<Device> device, Lane lane)
      : device_(std::move(device)), stream_(device_->stream(lane)) {}
  operator Stream&() { return stream_; }
  // Until all that was enqueued is done; rethrows the device's first failure.
  void wait() { device_->wait_on_host(device_->record(stream_)); }

 private:
  std::shared_ptr<Device> device_;
  Stream& stream_;
};

}  // namespace voltapile::testing
