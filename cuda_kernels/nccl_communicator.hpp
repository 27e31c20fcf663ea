// Tensors from GPU to GPU by NCCL.
#pragma once
#include <memory>

#include "device_communicator.hpp"
#include "nccl_watch.hpp"

namespace voltapile::cuda {

class NcclCommunicator final : public DeviceCommunicator {
 public:
  // Collective over `host`, whose ranks have a GPU each. PeerFailure when one is lost meanwhile.
  NcclCommunicator(std::unique_ptr<Communicator> host, Device& device, Context& context);
  ~NcclCommunicator() override;
  std::unique_ptr<Communicator> split(int color, int key) override;
  bool capturable() const override { return true; }
  void poll_error() override;
  void abort(const std::string& why) override;

 private:
  void reduce_all(const TensorView& t, Reduction op, Stream& stream) override;
  void scatter(const TensorView& in, const TensorView& out, Reduction op, Stream& stream) override;
  void gather(const TensorView& in, const TensorView& out, Stream& stream) override;
  void spread(const TensorView& t, int root, Stream& stream) override;
  void swap(std::span<const Transfer> transfers, Stream& stream) override;

  template <class Call>
  void enqueue(const char* name, Stream& stream, Call call);

  std::shared_ptr<NcclEnd> end_;  // null for one rank
  cudaStream_t last_ = nullptr;
  const int exceptions_at_birth_;
};

}  // namespace voltapile::cuda
