// Runs a model in pieces as the engine would: chunks, micro-batches, one tensor rank. Everything
// that a test compares is a whole tensor in double, whatever the mesh and the working type.
#pragma once
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "voltapile/model/chunk_model.hpp"

namespace voltapile::test {

using Values = std::map<std::string, std::vector<double>>;

struct Batch {
  std::vector<uint8_t> pictures;  // (B, channels, H, W)
  std::vector<int32_t> labels;    // (B), or
  std::vector<float> targets;     // (B, K)
};

struct Options {
  DType working = DType::f64;
  int64_t micro = 2;  // samples
  bool sequence = false;
  Recompute recompute = Recompute::none;
  bool rebuild_attention = false;
  std::optional<uint64_t> stored_seed{};  // what is saved goes through 8 bits, rounded with it
  int segment_layers = 0;
  bool split_backward = false;
  bool training = true;
  std::vector<int> cuts;  // layers at which a new chunk begins, besides the first
  int64_t valid = -1;     // samples that count, of each micro-batch; -1: all
  double loss_scale = 1;
  std::vector<double> pixel_mean{}, pixel_std{};  // empty: 0.5 and 0.25
};

// A small model that takes every default path; tests change what they are about.
Deck small_deck();
// Deterministic values of ordinary size for every parameter, norms and biases included.
Values random_weights(const Architecture&, uint64_t seed = 7);
// Deterministic pictures with labels.
Batch random_batch(const Architecture&, int64_t samples, uint64_t seed = 11);
Batch soft_batch(const Architecture&, int64_t samples, uint64_t seed = 11);

void write_values(const TensorView& view, const std::vector<double>& values);
std::vector<double> read_values(const TensorView& view);

class Runner {
 public:
  Runner(const Architecture&, const Options&, Communicator& tensor);
  ~Runner();

  void set_weights(const Values& whole);
  // Gradients start at zero and losses too; forward of every micro-batch, then backward of every
  // one if training. Returns the loss: sum over samples / number of samples.
  double step(const std::vector<Batch>& micros);
  double forward(const std::vector<Batch>& micros);  // the first half of step()
  // Adds this rank's part of every gradient to `whole`; over all tensor ranks that gives the
  // gradients (summands by Parameter::tensor_gradient, else replicated ones from rank 0).
  void add_gradients(Values& whole) const;
  // (B, K) of the last chunk's last micro-batch; this rank's columns, others zero.
  std::vector<double> logits() const;
  std::vector<double> correct() const;  // top-1, top-5

  // The flat buffers of each chunk, for optimizer steps and bitwise comparisons.
  size_t chunks() const;
  TensorView weights(size_t chunk) const;
  TensorView gradients(size_t chunk) const;
  const FlatLayout& layout(size_t chunk) const;
  Device& device();
  StepState& state();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// One rank: loss and gradients of one step.
struct Outcome {
  double loss = 0;
  Values gradients;
};
Outcome run_solo(const Architecture&, const Options&, const Values& weights,
                 const std::vector<Batch>& micros);
// tp ranks as threads.
Outcome run_tensor(const Architecture&, const Options&, int tp, const Values& weights,
                   const std::vector<Batch>& micros);

// Largest |a - b| of a tensor over the largest |b| of the layer that it belongs to, and where.
struct Difference {
  double value = 0;
  std::string where;
};
Difference largest_difference(const Architecture&, const Values& a, const Values& b);

}  // namespace voltapile::test
