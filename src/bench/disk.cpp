#include "voltapile/device/host/disk.hpp"

#include <algorithm>
#include <memory>
#include <vector>

#include "voltapile/base/clock.hpp"
#include "voltapile/train/trainer.hpp"

#include "workbench.hpp"

namespace voltapile::bench {

double measure_disk(Communicator& world, const BenchOptions& options) {
  constexpr size_t kPiece = size_t{32} << 20;
  const size_t pieces = options.quick ? 1 : 64;  // 2 GiB
  std::unique_ptr<host::DiskFile> file;
  std::vector<std::byte> bytes(kPiece, std::byte{0x5a});
  agree(world, [&] {
    try {
      file = std::make_unique<host::DiskFile>(
          options.disk, format("bench_rank_{:05}", world.rank()), pieces * kPiece);
    } catch (const Error& error) {
      throw Error(error.code(), format("--disk {}: {}", options.disk, error.what()));
    }
  });
  world.barrier();
  double seconds = 0;
  agree(world, [&] {
    const double began = now_seconds();
    for (size_t piece = 0; piece < pieces; ++piece) file->write(piece * kPiece, bytes);
    seconds = now_seconds() - began;
  });
  double slowest = 0;
  for (const std::string& text : world.gather_text(format("{}", seconds)))
    slowest = std::max(slowest, std::stod(text));
  return static_cast<double>(pieces * kPiece) / slowest;
}

}  // namespace voltapile::bench
