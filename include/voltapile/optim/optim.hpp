// The optimizer's arithmetic that is not a kernel: learning rate, shards over the data axis, who
// counts what.
#pragma once
#include <cstdint>
#include <vector>

#include "voltapile/architecture/architecture.hpp"
#include "voltapile/device/kernels.hpp"
#include "voltapile/mesh/mesh.hpp"

namespace voltapile {

// Of step `step` (from 0) out of `total`. Warm-up is linear from lr/warmup to lr over warmup_steps;
// then constant, or cosine or linear decay to min_lr at `total`, and min_lr beyond.
double learning_rate(const Deck::Optimizer& optimizer, int64_t step, int64_t total);

// Of a run's first step.
double first_loss_scale(const Deck::Precision& precision);

// The part of a chunk's flat buffer that one data rank owns: everything with zero = 0, a dp-th with
// zero = 1. layout.elements must be a multiple of dp.
Range shard(const FlatLayout& layout, int zero, int dp, int dp_rank);

// Pieces relative to the shard's first element, in flat order; neighbours are merged.
std::vector<Range> decayed_ranges(const Architecture&, const FlatLayout&, Range shard);
// Only what this rank counts in the global norm: replicated parameters on tp rank 0; with zero = 0,
// on dp rank 0; padded class rows and fixed tables never. One piece a parameter, in flat order,
// relative to the shard's first element.
std::vector<NormPiece> norm_pieces(const Architecture&, const FlatLayout&, Range shard, const Mesh&,
                                   Coord, int zero);

// Runs of replicated parameters in a flat buffer whose gradient must be summed over tp before it is
// reduced over dp. Consecutive ones make one run, alignment gaps (zeros) between them included.
std::vector<Range> tensor_partial_ranges(const Architecture&, const FlatLayout&, const Mesh&,
                                         bool sequence);

// Parameter by id, for messages.
std::string parameter_name(const Architecture&, int32_t id);

}  // namespace voltapile
