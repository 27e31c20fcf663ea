// The mesh: pipeline x data x tensor axes; one rank holds one coordinate; tp varies fastest.
#pragma once
#include <string>

namespace voltapile {

struct Coord {
  int pp = 0, dp = 0, tp = 0;
  bool operator==(const Coord&) const = default;
};

struct Mesh {
  int pp = 1, dp = 1, tp = 1;

  int size() const { return pp * dp * tp; }
  int rank(Coord c) const { return (c.pp * dp + c.dp) * tp + c.tp; }
  Coord coord(int rank) const { return {rank / (dp * tp), rank / tp % dp, rank % tp}; }
  bool operator==(const Mesh&) const = default;
  std::string text() const;               // "pp4 x dp1 x tp2"
  std::string rank_text(int rank) const;  // "rank 5 (pp1 dp0 tp1)"
};

}  // namespace voltapile
