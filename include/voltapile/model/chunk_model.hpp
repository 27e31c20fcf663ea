// The layers of one chunk with explicit forward and backward, on whatever Device the context names.
// Tensor parallelism lives inside the layers: column- and row-divided products, and the collectives
// between them.
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "voltapile/architecture/architecture.hpp"
#include "voltapile/base/thread_pool.hpp"
#include "voltapile/comm/communicator.hpp"
#include "voltapile/device/device.hpp"
#include "voltapile/device/kernels.hpp"

namespace voltapile {

struct ModelContext {
  const Architecture* architecture = nullptr;
  Kernels* kernels = nullptr;
  Stream* stream = nullptr;        // the compute lane
  Communicator* tensor = nullptr;  // the tensor axis
  Sizes sizes;
  uint64_t seed = 0;
  std::vector<double> pixel_mean{}, pixel_std{};  // per channel, of pixel / 255
};

// Which part of the model, and how much of it is kept.
struct ChunkShape {
  int first_layer = 0, end_layer = 0;
  int segment_layers = 0;  // Recompute::layers: layers per segment; 0 = everything saved is kept
  bool training = true;
};

// Sizes in bytes of what a call needs; the same numbers as plan's value_bytes.
struct ChunkBytes {
  size_t saved = 0, deferred = 0, workspace = 0;
};
ChunkBytes chunk_bytes(const Architecture&, const ChunkShape&, const Sizes&, bool split_backward);

// Memory of one call, all of it from the plan's slots. Views may be empty where the chunk has no
// use for them.
struct ChunkMemory {
  TensorView weights;    // flat, working
  TensorView gradients;  // flat, acc; accumulated into
  std::byte* saved = nullptr;
  std::byte* deferred = nullptr;  // split backward only
  std::byte* workspace = nullptr;
  TensorView input,
      output;  // boundary activations (R, C); no input for the first chunk, no output for the last
  TensorView output_gradient, input_gradient;
  TensorView pictures;  // (B, channels, H, W) u8, first chunk
  Targets targets;      // last chunk
};

struct MicroStep {
  const StepState* state = nullptr;  // on the device
  int64_t sample_offset = 0;         // of this micro-batch's first sample within the step
  int64_t valid = 0;                 // samples that count (evaluation pads its last batch)
  double loss_factor = 1;            // 1 / samples of the whole step
  TensorView loss;                   // (1) f64, summed losses; last chunk
  TensorView correct;  // (2) f64, top-1 and top-5; last chunk in evaluation, else empty
  // (B, L) f32, optional: the head's output for this rank's classes, padding columns too
  TensorView logits;
};

class ChunkModel {
 public:
  ChunkModel(const ModelContext& context, const ChunkShape& shape);
  ~ChunkModel();
  const FlatLayout& layout() const;  // multiple = 1; the plan's padding comes after it

  // Training keeps saved tensors; evaluation (shape.training == false) keeps nothing.
  void forward(const MicroStep&, const ChunkMemory&);
  // Rebuilds the last segment's saved tensors in workspace; the next backward call must be this
  // micro-batch's.
  void recompute(const MicroStep&, const ChunkMemory&);
  void backward(const MicroStep&, const ChunkMemory&);
  void backward_input(const MicroStep&, const ChunkMemory&);
  void backward_weight(const MicroStep&, const ChunkMemory&);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Initial values of the local part (local_shape(p, tp)) of a parameter, from its element `begin` in
// row-major order on, as many as `values` has, in f32 or f64; padding is 0. Depends on the seed and
// on whole-tensor indices only, not on the mesh and not on the threads of `pool` (null: the caller
// works alone). Error(bad_input) for a sine table of a width that 4 does not divide.
void initial_values(const Architecture&, const Parameter&, uint64_t seed, int tp, int tp_rank,
                    int64_t begin, TensorView values, ThreadPool* pool = nullptr);

}  // namespace voltapile
