#include "scratch.hpp"

#include <array>
#include <cstdlib>
#include <memory>
#include <new>

namespace voltapile::cpu {
namespace {
struct Block {
  std::unique_ptr<std::byte, void (*)(void*)> data{nullptr, std::free};
  size_t bytes = 0;
};
}  // namespace

std::byte* scratch_bytes(Scratch use, size_t bytes) {
  static thread_local std::array<Block, 3> blocks;
  Block& block = blocks[static_cast<size_t>(use)];
  if (block.bytes < bytes) {
    const size_t rounded = (bytes + bytes / 4 + 4095) / 4096 * 4096;
    block.data.reset();
    block.data.reset(static_cast<std::byte*>(std::aligned_alloc(64, rounded)));
    if (!block.data) throw std::bad_alloc();
    block.bytes = rounded;
  }
  return block.data.get();
}

}  // namespace voltapile::cpu
