// The same layers on the dry device: shapes are checked and nothing is read or written, so a model
// that no machine holds can be rehearsed.
#include "voltapile/device/dry.hpp"

#include <gtest/gtest.h>

#include "harness.hpp"

namespace voltapile::test {
namespace {

// A chunk on the dry device with all that a call of it needs.
class DryChunk {
 public:
  DryChunk(const Architecture& a, const ChunkShape& shape, const Sizes& sizes)
      : tensor_(make_dry_communicator(sizes.tp - 1, sizes.tp)),
        stream_(device_->stream(Lane::compute)),
        model_(context(a, sizes), shape) {
    const int64_t elements = model_.layout().elements;
    const DType acc = accumulate_type(sizes.working);
    const ChunkBytes bytes = chunk_bytes(a, shape, sizes, true);
    memory_.weights = {allocate(static_cast<size_t>(elements) * bytes_of(sizes.working)),
                       sizes.working,
                       {elements}};
    memory_.gradients = {allocate(static_cast<size_t>(elements) * bytes_of(acc)), acc, {elements}};
    memory_.saved = allocate(bytes.saved);
    memory_.deferred = allocate(bytes.deferred);
    memory_.workspace = allocate(bytes.workspace);
    const Shape pictures{sizes.micro, a.model.channels, a.model.image[0], a.model.image[1]};
    memory_.pictures = {allocate(static_cast<size_t>(pictures.elements())), DType::u8, pictures};
    memory_.targets.labels = {
        allocate(static_cast<size_t>(sizes.micro) * sizeof(int32_t)), DType::i32, {sizes.micro}};
    memory_.targets.classes = a.model.classes;
    step_.valid = sizes.micro;
    step_.loss = {allocate(sizeof(double)), DType::f64, {1}};
  }
  // FLOPs that a call counts.
  double flops_of(void (ChunkModel::*call)(const MicroStep&, const ChunkMemory&)) {
    const double before = dry_counters(*device_).flops();
    (model_.*call)(step_, memory_);
    return dry_counters(*device_).flops() - before;
  }
  const ChunkModel& model() const { return model_; }
  size_t bytes() const { return device_->allocated_bytes(); }

 private:
  ModelContext context(const Architecture& a, const Sizes& sizes) {
    ModelContext context{&a, &device_->kernels(), &stream_, tensor_.get(), sizes};
    context.pixel_mean.assign(static_cast<size_t>(a.model.channels), 0.5);
    context.pixel_std.assign(static_cast<size_t>(a.model.channels), 0.25);
    return context;
  }
  std::byte* allocate(size_t bytes) {
    return buffers_.emplace_back(device_->allocate(bytes, "test")).data();
  }

  std::unique_ptr<Device> device_ = make_dry_device();
  std::unique_ptr<Communicator> tensor_;
  Stream& stream_;
  ChunkModel model_;
  std::vector<Buffer> buffers_;
  ChunkMemory memory_;
  MicroStep step_;
};

// A recording of recompute that is replayed calls nothing on the host.
TEST(DryModel, TakesABackwardWhoseRecomputeIsReplayed) {
  const Architecture a = make_architecture(small_deck());
  const Sizes sizes{.micro = 1, .working = DType::f32, .recompute = Recompute::layers};
  DryChunk chunk(a, {0, static_cast<int>(a.layers.size()), 1, true}, sizes);
  chunk.flops_of(&ChunkModel::recompute);
  const double first = chunk.flops_of(&ChunkModel::backward);
  EXPECT_GT(first, 0);
  EXPECT_EQ(chunk.flops_of(&ChunkModel::backward), first);
}

TEST(DryModel, RunsAModelOf175BillionParametersWithoutMemory) {
  Deck deck = small_deck();
  deck.model.image = {224, 224};
  deck.model.patch = {14, 14};
  deck.model.dim = 12288;
  deck.model.depth = 96;
  deck.model.heads = 96;
  deck.model.mlp = 4 * 12288;
  deck.model.classes = 21841;
  const Architecture a = make_architecture(deck);
  DryChunk chunk(a, {0, 98, 4},
                 {.micro = 1,
                  .tp = 8,
                  .sequence = true,
                  .working = DType::bf16,
                  .recompute = Recompute::layers});
  EXPECT_GT(chunk.model().layout().elements * 8, int64_t{170'000'000'000});
  EXPECT_GT(chunk.bytes(), size_t{100'000'000'000});
  EXPECT_GT(chunk.flops_of(&ChunkModel::forward), 0);
  EXPECT_GT(chunk.flops_of(&ChunkModel::recompute), 0);
  EXPECT_GT(chunk.flops_of(&ChunkModel::backward_input), 0);
  EXPECT_GT(chunk.flops_of(&ChunkModel::backward_weight), 0);
}

// What `architecture` says a layer costs is what the layers ask of the device, on every mesh.
TEST(DryModel, AsksForTheFlopsThatTheArchitectureStates) {
  Deck deck = small_deck();
  deck.model.heads = 4;
  deck.model.mlp = 16;
  deck.model.classes = 8;
  const Architecture a = make_architecture(deck);
  constexpr int64_t kMicro = 4;
  Flops stated;
  for (const Layer& layer : a.layers) {
    const Flops f = flops(a, layer, kMicro);
    stated.forward += f.forward;
    stated.backward_input += f.backward_input;
    stated.backward_weight += f.backward_weight;
  }
  const Flops embedding = flops(a, a.layers.front(), kMicro);
  // Backward computes the attention's scores again, which are not kept: one product a block.
  const auto tokens = static_cast<double>(a.tokens());
  const double scores = 2 * kMicro * tokens * tokens * static_cast<double>(a.model.dim) * 2;

  for (const int tp : {1, 2, 4}) {
    for (const bool sequence : {false, true}) {
      DryChunk chunk(a, {0, 4}, {.micro = kMicro, .tp = tp, .sequence = sequence});
      const double repeated = tp - 1;  // every tensor rank computes the whole embedding
      EXPECT_EQ(tp * chunk.flops_of(&ChunkModel::forward),
                stated.forward + repeated * embedding.forward);
      const double both = tp * chunk.flops_of(&ChunkModel::backward);
      EXPECT_EQ(both, stated.backward_input + stated.backward_weight + scores +
                          repeated * embedding.backward_weight);
      chunk.flops_of(&ChunkModel::forward);
      const double input = tp * chunk.flops_of(&ChunkModel::backward_input);
      EXPECT_EQ(input, stated.backward_input + scores + tp * embedding.backward_weight);
      EXPECT_EQ(tp * chunk.flops_of(&ChunkModel::backward_weight), both - input);

      Sizes rebuilding{.micro = kMicro, .tp = tp, .sequence = sequence};
      rebuilding.rebuild_attention = true;
      DryChunk rebuilds(a, {0, 4}, rebuilding);
      rebuilds.flops_of(&ChunkModel::forward);
      EXPECT_EQ(tp * rebuilds.flops_of(&ChunkModel::backward_input),
                input + 2 * attention_flops(a, kMicro));
      EXPECT_EQ(tp * rebuilds.flops_of(&ChunkModel::backward_weight), both - input);
    }
  }
}

// The bound: recomputation costs at most a forward, and skips each segment's last product.
TEST(DryModel, RecomputesLessThanAForward) {
  Deck deck = small_deck();
  deck.model.depth = 4;
  const Architecture a = make_architecture(deck);
  const Sizes plain{.micro = 4}, recomputed{.micro = 4, .recompute = Recompute::layers};
  DryChunk keeps(a, {0, 6}, plain);
  const double forward = keeps.flops_of(&ChunkModel::forward);
  const double backward = keeps.flops_of(&ChunkModel::backward);
  double blocks = 0;
  for (int l = 1; l <= 4; ++l) blocks += flops(a, a.layers[static_cast<size_t>(l)], 4).forward;
  const double last_product = 2.0 * 4 * static_cast<double>(a.tokens() * a.model.dim * a.model.mlp);
  for (const int segment : {1, 2, 4}) {
    DryChunk chunk(a, {0, 6, segment}, recomputed);
    EXPECT_EQ(chunk.flops_of(&ChunkModel::forward), forward);
    double again = chunk.flops_of(&ChunkModel::recompute);
    again += chunk.flops_of(&ChunkModel::backward) - backward;
    EXPECT_EQ(again, blocks - 4.0 / segment * last_product) << "segments of " << segment;
  }
}

}  // namespace
}  // namespace voltapile::test
