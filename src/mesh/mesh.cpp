#include "voltapile/mesh/mesh.hpp"

#include "voltapile/base/format.hpp"

namespace voltapile {

std::string Mesh::text() const { return format("pp{} x dp{} x tp{}", pp, dp, tp); }

std::string Mesh::rank_text(int rank) const {
  const Coord c = coord(rank);
  return format("rank {} (pp{} dp{} tp{})", rank, c.pp, c.dp, c.tp);
}

}  // namespace voltapile
