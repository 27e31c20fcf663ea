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

// What adamw does with a shard, relative to its first element, in flat order: frozen parameters and
// fixed tables are in no run. Weight decay is for those that Parameter::decay names; the rate of
// layer l is layer_decay^(depth + 1 - l), so the head's is 1 and each layer's below is that much
// smaller (as the fine-tuning of BEiT, Bao et al. 2022, appendix, and of MAE, He et al. 2022, A.1).
// Neighbours of one rule make one run; gaps of the alignment (zeros) belong to the run before them.
std::vector<UpdateRun> update_runs(const Architecture&, const FlatLayout&, Range shard,
                                   double layer_decay);
// Where runs touch, one range.
std::vector<Range> joined(const std::vector<UpdateRun>& runs);
// Only what this rank counts in the global norm: replicated parameters on tp rank 0; with zero = 0,
// on dp rank 0; padded class rows, fixed tables and frozen parameters never. One piece a parameter,
// in flat order, relative to the shard's first element.
std::vector<NormPiece> norm_pieces(const Architecture&, const FlatLayout&, Range shard, const Mesh&,
                                   Coord, int zero);

// Runs of replicated parameters in a flat buffer whose gradient must be summed over tp before it is
// reduced over dp. Consecutive ones make one run, alignment gaps (zeros) between them included.
std::vector<Range> tensor_partial_ranges(const Architecture&, const FlatLayout&, const Mesh&,
                                         bool sequence);

// Parameter by id, for messages.
std::string parameter_name(const Architecture&, int32_t id);

}  // namespace voltapile
