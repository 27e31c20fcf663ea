// Writes checkpoints of the sample model for the Python tests.
// usage: write_sample CHECKPOINTS PP DP TP SEED STEP...
// Prints one line a tensor: id, name, extents.
#include <cstdio>
#include <cstdlib>

#include "sample.hpp"

int main(int argc, char** argv) {
  if (argc < 7) return 2;
  const voltapile::Mesh mesh{std::atoi(argv[2]), std::atoi(argv[3]), std::atoi(argv[4])};
  for (int i = 6; i < argc; ++i) {
    voltapile::sample::save(argv[1], mesh, std::atoll(argv[i]),
                            std::strtoull(argv[5], nullptr, 10));
  }
  for (const voltapile::Parameter& p : voltapile::sample::model()) {
    std::printf("%u %s", p.id, p.name.c_str());
    for (int dim = 0; dim < p.shape.dims(); ++dim) {
      std::printf(" %lld", static_cast<long long>(p.shape[dim]));
    }
    std::printf("\n");
  }
}
