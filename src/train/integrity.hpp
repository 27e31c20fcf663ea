// Private to train: checks for silent corruption, between steps. What must be the same bits in
// several places is compared; work that must give the same bits twice is done twice.
//
// Found are: a copy of weights, or of master weights and moments with zero = 0, that differs
// between data ranks; parameters that differ between the tensor ranks which all hold them; weights
// that are not the rounded master weights of their owner; and a device that computes a chunk's
// forward pass differently the second time. Not found: what nobody holds twice (moments with zero =
// 1), and a bit of a weight that the next update has written anew.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "voltapile/train/engine.hpp"

namespace voltapile {

// What one rank found of one thing that others hold too.
struct Copy {
  std::string what;  // "weights of chunk 3, part 0": the same text on all that hold it
  uint64_t digest = 0;
  bool is_owner = false;  // it also agrees with what this rank keeps the original of
};
struct RankCopies {
  std::string place;  // "rank 5 (pp1 dp0 tp1) on node7"
  std::vector<Copy> copies;
  std::vector<std::string> own_faults;  // wrong whatever the others have
};
// One line for each fault, with the ranks that are wrong: those that differ from the owner, else
// those that differ from most. Where there is no owner and no majority it names both sides and says
// so.
std::vector<std::string> find_corruption(const std::vector<RankCopies>& ranks);

class Integrity {
 public:
  // `control`: a communicator of all ranks.
  Integrity(RankContext& context, Communicator& control);
  // Collective; every lane must be idle and `engine` waited for. Runs one of this rank's chunks
  // twice, each time another one. SharedError(failure) with every fault.
  void check(Engine& engine, int64_t step);

 private:
  uint64_t digest_of(const void* data, size_t bytes);
  void add_state(int chunk, RankCopies& mine);
  void add_weights(int chunk, RankCopies& mine);
  void add_replicated(int chunk, RankCopies& mine);

  RankContext& context_;
  Communicator& control_;
  Buffer staging_;
  size_t checks_ = 0;
};

}  // namespace voltapile
