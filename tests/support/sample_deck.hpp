// Decks for tests, built in code: small by default, or seeded random ones that are always valid.
#pragma once
#include <random>
#include <string>

#include "voltapile/deck/deck.hpp"

namespace voltapile::test {

// ViT with 4x4 patches of a 16x16 picture, one rank, f32. Fields may be changed afterwards.
inline Deck sample_deck() {
  Deck d;
  d.path = "sample.toml";
  d.run.name = "sample";
  d.run.dir = "runs";
  d.run.device = DeviceKind::cpu;
  d.run.steps = 10;
  d.run.seed = 1;
  d.run.log_every = 1;
  d.model = {.image = {16, 16},
             .patch = {4, 4},
             .channels = 3,
             .dim = 32,
             .depth = 4,
             .heads = 4,
             .mlp = 64,
             .classes = 10,
             .pool = Pool::mean,
             .position = Position::learned,
             .qkv_bias = true,
             .layer_scale = 0,
             .qk_norm = false,
             .drop_path = 0,
             .initial_std = 0.02};
  d.parallel = {.pipeline = 1,
                .data = 1,
                .tensor = 1,
                .sequence = Sequence::automatic,
                .schedule = "1f1b",
                .chunks = 1,
                .schedule_file = ""};
  d.batch = {.global = 8, .micro = 2};
  d.precision = {.type = DType::f32,
                 .loss_scale = std::nullopt,
                 .initial_loss_scale = 65536,
                 .growth_interval = 2000,
                 .tf32 = false};
  d.optimizer = {.name = "adamw",
                 .lr = 1e-3,
                 .min_lr = 0,
                 .weight_decay = 0.05,
                 .betas = {0.9, 0.999},
                 .eps = 1e-8,
                 .clip = 1,
                 .warmup_steps = 0,
                 .schedule = LearningRateSchedule::constant,
                 .zero = 0,
                 .moments = MomentStore::f32,
                 .ema = 0,
                 .freeze = {},
                 .layer_decay = 1};
  d.memory = {.checkpoint_every = std::nullopt,
              .recompute = Recompute::none,
              .activations = ActivationStore::working,
              .gradients = GradientStore::automatic,
              .optimizer = Home::device,
              .weights = Home::device,
              .nvme_dir = "nvme",
              .device_limit_bytes = std::nullopt,
              .host_limit_bytes = std::nullopt};
  d.data.format = DataFormat::synthetic;
  d.data.synthetic_train = 64;
  d.data.synthetic_test = 16;
  d.data.mean = {0.5, 0.5, 0.5};
  d.data.std = {0.5, 0.5, 0.5};
  d.data.workers = 1;
  d.data.prefetch_factor = 2;
  d.run.skip_limit = 50;
  d.run.rewind_limit = 3;
  d.checkpoint = {.every_steps = 0, .keep_last = 1, .at_end = true, .pool_bytes = 1 << 20};
  return d;
}

// ViT-L's blocks at 224 pixels, 1000 classes.
inline Deck vit_large_deck() {
  Deck d = sample_deck();
  d.model.image = {224, 224};
  d.model.patch = {16, 16};
  d.model.dim = 1024;
  d.model.depth = 24;
  d.model.heads = 16;
  d.model.mlp = 4096;
  d.model.classes = 1000;
  return d;
}

// A valid deck that `seed` decides: every mesh, schedule, model option and recomputation comes up.
inline Deck random_deck(uint64_t seed) {
  std::mt19937_64 random(seed * 0x9E3779B97F4A7C15u + 1);
  const auto pick = [&](std::initializer_list<int64_t> choices) {
    return *(choices.begin() + static_cast<long>(random() % choices.size()));
  };
  Deck d = sample_deck();
  auto& p = d.parallel;
  p.pipeline = static_cast<int>(pick({1, 2, 3, 4}));
  p.data = static_cast<int>(pick({1, 2, 3}));
  p.tensor = static_cast<int>(pick({1, 2, 4}));
  const int64_t schedule = pick({0, 1, 2, 3, 4});
  const char* const names[] = {"gpipe", "1f1b", "interleaved", "breadth_first", "zero_bubble_h1"};
  p.schedule = names[schedule];
  p.chunks = schedule == 2 || schedule == 3 ? static_cast<int>(pick({1, 2, 3})) : 1;
  d.batch.micro = pick({1, 2, 4});
  const int64_t micros = schedule == 2 ? p.pipeline * pick({1, 2, 3}) : pick({1, 2, 3, 4, 6});
  d.batch.global = d.batch.micro * p.data * micros;
  d.model.depth = p.pipeline * p.chunks + pick({0, 1, 3, 6});
  d.model.image = {pick({8, 16}), pick({16, 24})};
  d.model.heads = pick({4, 8});
  d.model.classes = pick({3, 10, 17});
  d.model.pool = pick({0, 1}) ? Pool::token : Pool::mean;
  d.model.position = pick({0, 1}) ? Position::learned : Position::sine2d;
  d.model.qk_norm = pick({0, 1});
  d.model.qkv_bias = pick({0, 1, 1});
  d.model.layer_scale = static_cast<double>(pick({0, 1})) * 0.1;
  const Recompute recompute[] = {Recompute::none, Recompute::layers, Recompute::selective};
  d.memory.recompute = recompute[pick({0, 1, 2})];
  if (pick({0, 1})) d.memory.checkpoint_every = pick({1, 2, 3});
  const DType types[] = {DType::f32, DType::bf16, DType::f16};
  d.precision.type = types[pick({0, 1, 2})];
  d.optimizer.zero = static_cast<int>(pick({0, 1}));
  d.eval.batch = pick({0, 1, 4});
  const Home homes[] = {Home::device, Home::host, Home::nvme};
  d.memory.optimizer = homes[pick({0, 0, 1, 2})];
  if (d.memory.optimizer != Home::device) d.memory.weights = homes[pick({0, 1, 2})];
  const ActivationStore stores[] = {ActivationStore::working, ActivationStore::int8,
                                    ActivationStore::host};
  d.memory.activations = stores[pick({0, 0, 1, 2})];
  return d;
}

}  // namespace voltapile::test
