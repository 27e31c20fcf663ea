// A lane of a device, for communicator tests, and the ranks to run them on.
#pragma once
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "voltapile/comm/transport.hpp"

#include "gpu.hpp"
#include "values.hpp"

namespace voltapile::testing {

// One lane, and the device's view of tensors that live in a test's own memory: on a GPU copies in
// device memory, made when a tensor is first mentioned and brought back by wait().
class TestLane {
 public:
  TestLane() : TestLane(make_cpu_device(1)) {}
  // Several lanes of one device. `most_bytes` is for all tensors between two waits.
  explicit TestLane(std::shared_ptr<Device> device, Lane lane = Lane::compute,
                    size_t most_bytes = size_t{16} << 20)
      : device_(std::move(device)),
        stream_(device_->stream(lane)),
        copies_(device_->describe().starts_with("cuda")),
        most_bytes_(most_bytes) {}
  TestLane(TestLane&&) = default;
  // Declare it after the tensors: it may be left by an exception, with work under way.
  ~TestLane() {
    if (device_ != nullptr) device_->wait_until_idle();
    for (Buffer* buffer : {&memory_, &pinned_})
      if (buffer->data() != nullptr) left_over().push_back(std::move(*buffer));
  }
  // Memory of this thread's lanes that have gone. To give it back is to wait until the GPU is idle,
  // which it is not while another rank of this process waits for this one.
  static std::vector<Buffer>& left_over() {
    static thread_local std::vector<Buffer> buffers;
    return buffers;
  }
  operator Stream&() { return stream_; }

  TensorView operator()(const Block& block) {
    return {place(block), block.view().dtype, block.view().shape};
  }
  TensorView operator()(const Block& block, int64_t begin, int64_t end) {
    return (*this)(block).slice_flat(begin, end);
  }
  // When the lane gets here, `write` fills the tensor as the host sees it.
  void rewrite(const Block& block, const std::function<void(const TensorView&)>& write) {
    if (!copies_) return stream_.run_on_host([write, view = block.view()] { write(view); });
    const TensorView seen = (*this)(block);
    const TensorView staged{pinned_.data() + copied_.at(block.view().data).at, seen.dtype,
                            seen.shape};
    stream_.run_on_host([write, staged] { write(staged); });
    device_->copy(seen.data, staged.data, seen.bytes(), stream_);
  }
  // Until all that was enqueued is done; rethrows the device's first failure.
  void wait() {
    for (const auto& [host, copy] : copied_)
      device_->copy(pinned_.data() + copy.at, memory_.data() + copy.at, copy.bytes, stream_);
    device_->wait_on_host(device_->record(stream_));
    for (const auto& [host, copy] : copied_)
      std::memcpy(host, pinned_.data() + copy.at, copy.bytes);
    copied_.clear();
    used_ = 0;
  }

 private:
  struct Copy {
    size_t at, bytes;
  };
  void* place(const Block& block) {
    const TensorView& t = block.view();
    if (!copies_) return t.data;
    const auto [at, added] = copied_.try_emplace(t.data, Copy{used_, t.bytes()});
    if (added) {
      constexpr size_t kAlignment = 256;
      if (memory_.bytes() == 0) {
        memory_ = device_->allocate(most_bytes_, "test tensors");
        pinned_ = device_->allocate_host(most_bytes_, "test tensors");
      }
      used_ += (t.bytes() + kAlignment) / kAlignment * kAlignment;
      VP_CHECK(used_ <= most_bytes_, "a test's tensors take {} bytes", used_);
      std::memcpy(pinned_.data() + at->second.at, t.data, t.bytes());
      device_->copy(memory_.data() + at->second.at, pinned_.data() + at->second.at, t.bytes(),
                    stream_);
    }
    return memory_.data() + at->second.at;
  }

  std::shared_ptr<Device> device_;
  Stream& stream_;
  bool copies_;
  size_t most_bytes_;
  Buffer memory_, pinned_;
  std::map<void*, Copy> copied_;
  size_t used_ = 0;
};

// What carries tensors: a backend for host memory, or a transport between GPUs.
enum class Carrier { host, staged, nccl };

inline std::shared_ptr<Device> device_for(Carrier carrier, int rank) {
  if (carrier == Carrier::host) return make_cpu_device(1);
  return make_cuda_device({.local_rank = rank});
}
// A communicator of these ranks that takes the device's memory.
inline std::unique_ptr<Communicator> carried(std::unique_ptr<Communicator> host, Device& device,
                                             Carrier carrier) {
  return on_device(std::move(host), device,
                   carrier == Carrier::nccl     ? Transport::nccl
                   : carrier == Carrier::staged ? Transport::staged
                                                : Transport::automatic);
}

}  // namespace voltapile::testing
