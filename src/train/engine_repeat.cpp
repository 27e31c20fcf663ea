// Work done twice, to see whether the device gives the same bits.
#include "bit_digest.hpp"
#include "engine_impl.hpp"

namespace voltapile {

bool Engine::repeats(int chunk) {
  Impl& impl = *impl_;
  VP_CHECK(impl.training && impl.waited == impl.issued, "work is repeated while a step runs");
  Device& device = impl.device;
  Stream& stream = device.stream(Lane::compute);
  const ChunkMemory memory = impl.memory(chunk, 0);
  const size_t saved_bytes =
      memory.saved == nullptr ? 0 : value_bytes(impl.plan, impl.phase, Value::saved, chunk);
  const size_t output_bytes = memory.output.data == nullptr ? 0 : memory.output.bytes();
  Buffer host = device.allocate_host(saved_bytes + output_bytes + sizeof(double), "repeated work");
  std::array<uint64_t, 2> digests{};
  for (uint64_t& digest : digests) {
    impl.kernels.fill(impl.loss, 0, stream);
    impl.chunks[static_cast<size_t>(chunk)].model->forward(
        impl.micro_step(chunk, 0, impl.rank_samples()), memory);
    device.copy(host.data(), impl.loss.data, sizeof(double), stream);
    if (saved_bytes > 0)
      device.copy(host.data() + sizeof(double), memory.saved, saved_bytes, stream);
    if (output_bytes > 0)
      device.copy(host.data() + sizeof(double) + saved_bytes, memory.output.data, output_bytes,
                  stream);
    device.wait_on_host(device.record(stream));
    BitDigest bits;
    bits.add(host.data(), host.bytes());
    digest = bits.value();
  }
  impl.kernels.fill(impl.loss, 0, stream);  // as a step leaves it
  device.wait_on_host(device.record(stream));
  return digests[0] == digests[1];
}

}  // namespace voltapile
