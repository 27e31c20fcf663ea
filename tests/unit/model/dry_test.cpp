// The same layers on the dry device: shapes are checked and nothing is read or written, so a model
// that no machine holds can be rehearsed.
#include <gtest/gtest.h>

#include "harness.hpp"

namespace voltapile::test {
namespace {

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
  const auto device = make_dry_device();
  const auto tensor = make_dry_communicator(3, 8);
  Stream& stream = device->stream(Lane::compute);
  const Sizes sizes{.micro = 1,
                    .tp = 8,
                    .sequence = true,
                    .working = DType::bf16,
                    .recompute = Recompute::layers};
  const ChunkShape shape{0, 98, 4};
  ModelContext context{&a, &device->kernels(), &stream, tensor.get(), sizes};
  context.pixel_mean = {0.5, 0.5, 0.5};
  context.pixel_std = {0.25, 0.25, 0.25};
  ChunkModel model(context, shape);
  EXPECT_GT(model.layout().elements * 8, int64_t{170'000'000'000});

  const ChunkBytes bytes = chunk_bytes(a, shape, sizes, true);
  const auto elements = static_cast<size_t>(model.layout().elements);
  const Buffer weights = device->allocate(2 * elements, "weights");
  const Buffer gradients = device->allocate(4 * elements, "gradients");
  const Buffer saved = device->allocate(bytes.saved, "saved");
  const Buffer deferred = device->allocate(bytes.deferred, "deferred");
  const Buffer workspace = device->allocate(bytes.workspace, "workspace");
  const Buffer pictures = device->allocate(3 * 224 * 224, "pictures");
  const Buffer labels = device->allocate(sizeof(int32_t), "labels");
  const Buffer loss = device->allocate(sizeof(double), "loss");

  ChunkMemory memory;
  memory.weights = {weights.data(), DType::bf16, {model.layout().elements}};
  memory.gradients = {gradients.data(), DType::f32, {model.layout().elements}};
  memory.saved = saved.data();
  memory.deferred = deferred.data();
  memory.workspace = workspace.data();
  memory.pictures = {pictures.data(), DType::u8, {1, 3, 224, 224}};
  memory.targets.labels = {labels.data(), DType::i32, {1}};
  memory.targets.classes = a.model.classes;
  MicroStep step;
  step.valid = 1;
  step.loss = {loss.data(), DType::f64, {1}};
  model.forward(step, memory);
  model.recompute(step, memory);
  model.backward_input(step, memory);
  model.backward_weight(step, memory);
  device->wait_on_host(device->record(stream));
  EXPECT_GT(device->allocated_bytes(), size_t{100'000'000'000});
}

}  // namespace
}  // namespace voltapile::test
