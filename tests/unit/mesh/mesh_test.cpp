#include "voltapile/mesh/mesh.hpp"

#include <set>

#include <gtest/gtest.h>

namespace voltapile {

TEST(Mesh, RankAndCoordAreInverseOnEveryMesh) {
  for (int pp : {1, 2, 3, 4}) {
    for (int dp : {1, 2, 5}) {
      for (int tp : {1, 2, 3}) {
        const Mesh mesh{pp, dp, tp};
        std::set<int> seen;
        for (int p = 0; p < pp; ++p)
          for (int d = 0; d < dp; ++d)
            for (int t = 0; t < tp; ++t) {
              const Coord c{p, d, t};
              const int rank = mesh.rank(c);
              EXPECT_EQ(mesh.coord(rank), c);
              EXPECT_TRUE(rank >= 0 && rank < mesh.size());
              EXPECT_TRUE(seen.insert(rank).second) << "rank " << rank << " has two coordinates";
            }
        EXPECT_EQ(static_cast<int>(seen.size()), mesh.size());
      }
    }
  }
}

// Tensor parallelism talks most, so its ranks sit on neighbouring GPUs.
TEST(Mesh, TensorAxisVariesFastestThenData) {
  const Mesh mesh{2, 3, 4};
  EXPECT_EQ(mesh.rank({0, 0, 1}), 1);
  EXPECT_EQ(mesh.rank({0, 1, 0}), 4);
  EXPECT_EQ(mesh.rank({1, 0, 0}), 12);
}

TEST(Mesh, NamesItselfAndItsRanks) {
  EXPECT_EQ((Mesh{4, 1, 2}.text()), "pp4 x dp1 x tp2");
  EXPECT_EQ((Mesh{2, 2, 2}.rank_text(5)), "rank 5 (pp1 dp0 tp1)");
  EXPECT_EQ(Mesh{}.rank_text(0), "rank 0 (pp0 dp0 tp0)");
}

}  // namespace voltapile
