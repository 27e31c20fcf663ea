// Temporary memory of a thread: grows to what its largest call needs, then is reused for ever.
#pragma once
#include <cstddef>
#include <cstdint>

namespace voltapile::cpu {

// Who uses it. Uses nest: a call's memory (shared with the pool's threads by pointer) outlives its
// pieces, and a piece's outlives the products inside it; so each has a block of its own.
enum class Scratch { call, piece, product };

std::byte* scratch_bytes(Scratch use, size_t bytes);  // 64-byte aligned

// Several arrays out of one block: ask for the total first.
template <class A>
A* scratch(Scratch use, int64_t elements) {
  return reinterpret_cast<A*>(scratch_bytes(use, static_cast<size_t>(elements) * sizeof(A)));
}

}  // namespace voltapile::cpu
