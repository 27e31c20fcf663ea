// Tensors of a GPU through pinned host memory: to the host, the host communicator's own call, and
// back, all on the lane. Several ranks may share a GPU.
#pragma once
#include <memory>

#include "device_communicator.hpp"

namespace voltapile::cuda {

class StagedCommunicator final : public DeviceCommunicator {
 public:
  using DeviceCommunicator::DeviceCommunicator;
  ~StagedCommunicator() override;
  std::unique_ptr<Communicator> split(int color, int key) override;

 private:
  void reduce_all(const TensorView& t, Reduction op, Stream& stream) override;
  void scatter(const TensorView& in, const TensorView& out, Reduction op, Stream& stream) override;
  void gather(const TensorView& in, const TensorView& out, Stream& stream) override;
  void spread(const TensorView& t, int root, Stream& stream) override;
  void swap(std::span<const Transfer> transfers, Stream& stream) override;

  // Pinned memory for the next call. It grows to the largest need, at most kPieceBytes but for
  // exchanges of several tensors, and is the lane's until that call is done.
  std::byte* staging(size_t bytes, Stream& stream);
  void keep_until_done(Stream& stream);

  std::shared_ptr<Buffer> pinned_;
  Stream* last_ = nullptr;
};

}  // namespace voltapile::cuda
