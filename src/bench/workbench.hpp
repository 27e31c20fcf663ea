// Private to bench: operands on a device, and the time of a call.
#pragma once
#include <deque>
#include <functional>
#include <string>
#include <vector>

#include "voltapile/bench/bench.hpp"
#include "voltapile/device/kernels.hpp"

namespace voltapile::bench {

// A ViT-L's: what the shapes of all cases follow from.
struct Sizes {
  int64_t batch, tokens, dim, heads, mlp, classes, image, patch;
  int64_t parameters;  // of the optimizer's buffers
  int64_t product;     // side of the square products that give the ceiling
  size_t copy_bytes;   // of a copy that gives the ceiling
  double repetition_seconds, case_seconds;
  int most_repetitions;
  int64_t rows() const { return batch * tokens; }
};
Sizes sizes_of(const BenchOptions& options);

// Host lists that kernels refer to must outlive the device: declare one before it.
struct Lists {
  std::deque<std::vector<NormPiece>> pieces;
  std::deque<std::vector<UpdateRun>> runs;
};

// Gives out operands and keeps them until it goes. On the dry device they have no contents.
class Workbench {
 public:
  enum class Contents { random, none };
  Workbench(Device& device, DType type, const Sizes& sizes, Lists& lists, Contents contents);
  ~Workbench();  // waits until the device is idle

  const Sizes& sizes() const { return sizes_; }
  DType type() const { return type_; }
  Device& device() { return device_; }
  Kernels& kernels() { return device_.kernels(); }
  Stream& stream() { return device_.stream(Lane::compute); }
  Lists& lists() { return lists_; }

  // Uniform in [-1, 1); every few million values the same ones come again.
  TensorView random(DType type, Shape shape);
  TensorView working(Shape shape) { return random(type_, shape); }
  TensorView acc(Shape shape) { return random(accumulate_type(type_), shape); }
  TensorView filled(DType type, Shape shape, double value);
  TensorView bytes(Shape shape);                        // u8
  TensorView labels(int64_t samples, int64_t classes);  // i32
  StepState* state();                                   // of an ordinary step
  Buffer& host_buffer(size_t bytes);

  // Repetitions of a call, each of as many calls as fill it. Recorded: as the engine issues kernels
  // (Device::repeat). Plain: one after the other, for copies, which a recording may give to
  // another engine of the device.
  enum class Issue { recorded, plain };
  Timing time(const std::function<void()>& call, Issue issue = Issue::recorded,
              Lane lane = Lane::compute);
  // A fixed number of calls, for what all ranks must do alike.
  Timing time_fixed(const std::function<void()>& call, Lane lane, int calls, int repetitions);
  void finish(Lane lane = Lane::compute);

 private:
  TensorView empty(DType type, Shape shape);
  // Runs `issue` between marks; seconds of each.
  std::vector<double> measure(const std::function<void()>& issue, Lane lane, int repetitions);

  Device& device_;
  DType type_;
  const Sizes& sizes_;
  Lists& lists_;
  Contents contents_;
  std::deque<Buffer> buffers_, host_buffers_;
  TensorView source_;  // f32
};

// One call of an operation: its name in kernels.hpp, its shape as KernelFigure has it, the call.
struct Case {
  std::string name;
  std::vector<int64_t> shape;
  std::function<void()> call;
};
// Makes the operands of a case, on a bench of any device.
using Prepare = std::function<Case(Workbench&)>;
std::vector<Prepare> product_cases();    // matrix products, with what is fused into them
std::vector<Prepare> block_cases();      // normalisation, residuals, attention
std::vector<Prepare> ends_cases();       // embedding, pooling, loss
std::vector<Prepare> optimizer_cases();  // the optimizer, and plain memory operations

Ceilings measure_ceilings(Workbench& bench);
// Collective over `world`.
Communication measure_communication(Workbench& bench, Communicator& world,
                                    const BenchOptions& options);
// Bytes per second of each rank while all write; the same on every rank. Error(bad_input) names
// options.disk where nothing can be written there.
double measure_disk(Communicator& world, const BenchOptions& options);
EndToEnd measure_training(const BenchOptions& options, Communicator& world);

}  // namespace voltapile::bench
