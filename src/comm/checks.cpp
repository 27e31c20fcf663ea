#include "checks.hpp"

#include <algorithm>

namespace voltapile::comm {

void check_tensor(const Communicator& c, const char* call, const TensorView& t) {
  VP_CHECK(t.elements() >= 0, "{} of '{}': shape {}", call, c.name, t.shape.text());
  VP_CHECK(t.data != nullptr || t.elements() == 0, "{} of '{}': no memory behind {}", call, c.name,
           t.shape.text());
}

void check_pieces(const Communicator& c, const char* call, const TensorView& whole,
                  const TensorView& piece) {
  check_tensor(c, call, whole);
  check_tensor(c, call, piece);
  VP_CHECK(whole.dtype == piece.dtype, "{} of '{}': {} and {}", call, c.name, name_of(whole.dtype),
           name_of(piece.dtype));
  VP_CHECK(whole.elements() == c.size() * piece.elements(),
           "{} of '{}': {} is not {} (ranks) times {}", call, c.name, whole.shape.text(), c.size(),
           piece.shape.text());
  const auto* begin = static_cast<const std::byte*>(whole.data);
  const auto* part = static_cast<const std::byte*>(piece.data);
  const bool apart = part + piece.bytes() <= begin || begin + whole.bytes() <= part;
  VP_CHECK(apart || part == begin + piece.bytes() * static_cast<size_t>(c.rank()),
           "{} of '{}': the piece overlaps the whole elsewhere than at rank {}'s place", call,
           c.name, c.rank());
}

void check_root(const Communicator& c, int root) {
  VP_CHECK(0 <= root && root < c.size(), "broadcast of '{}': root {} of {} ranks", c.name, root,
           c.size());
}

void check_transfers(const Communicator& c, std::span<const Transfer> transfers) {
  for (const Transfer& transfer : transfers) {
    check_tensor(c, "exchange", transfer.tensor);
    VP_CHECK(0 <= transfer.peer && transfer.peer < c.size(),
             "exchange of '{}': peer {} of {} ranks", c.name, transfer.peer, c.size());
  }
  const auto to_self = [&](Direction direction) {
    return std::count_if(transfers.begin(), transfers.end(), [&](const Transfer& transfer) {
      return transfer.peer == c.rank() && transfer.direction == direction;
    });
  };
  VP_CHECK(to_self(Direction::send) == to_self(Direction::receive),
           "exchange of '{}': {} sends and {} receives between rank {} and itself in one call",
           c.name, to_self(Direction::send), to_self(Direction::receive), c.rank());
}

}  // namespace voltapile::comm
