// The table's second part: precision, optimizer and memory.
#include "schema.hpp"

namespace voltapile {

namespace {

Choice<Home> home() {
  return {{{"device", Home::device}, {"host", Home::host}, {"nvme", Home::nvme}}};
}

void add_precision(Schema& schema) {
  using P = Deck::Precision;
  Rows<P> precision(schema, "precision", &Deck::precision,
                    "Numbers. Matrix products and gradients accumulate in f32 in every case.");
  precision.add("type", &P::type,
                Choice<DType>{{{"f32", DType::f32}, {"bf16", DType::bf16}, {"f16", DType::f16}}},
                {.fallback = literal("\"f32\""),
                 .help = "Working type of weights and activations.",
                 .on_resume = OnResume::may_change,
                 .also = "dtype precision amp",
                 .words = "fp32=f32 float=f32 float32=f32 half=f16 float16=f16 bfloat16=bf16"});
  precision.add("loss_scale", &P::loss_scale, WordOr{"dynamic", Number{0x1p-24, 0x1p40}},
                {.fallback = derived("\"dynamic\" for f16, else 1",
                                     [](Deck& deck, const Given&) {
                                       auto& p = deck.precision;
                                       p.loss_scale.reset();
                                       if (p.type != DType::f16) p.loss_scale = 1.0;
                                     }),
                 .help = "Factor on the loss, so that small gradients survive f16. \"dynamic\" "
                         "doubles it after growth_interval good steps and halves it after an "
                         "overflow, whose step is skipped.",
                 .on_resume = OnResume::may_change,
                 .also = "scale"});
  precision.add("initial_loss_scale", &P::initial_loss_scale, Number{1, 0x1p40},
                {.fallback = literal("65536.0"),
                 .help = "Where a dynamic loss scale starts.",
                 .on_resume = OnResume::may_change});
  precision.add("growth_interval", &P::growth_interval, Integer{1},
                {.fallback = literal("2000"),
                 .unit = "steps",
                 .help = "Good steps before a dynamic loss scale doubles.",
                 .on_resume = OnResume::may_change});
  precision.add("tf32", &P::tf32, Flag{},
                {.fallback = literal("false"),
                 .help = "With type \"f32\" on a GPU that has it: matrix products may round their "
                         "factors to 10 bits, for speed.",
                 .on_resume = OnResume::may_change,
                 .also = "allow_tf32"});
}

void add_optimizer(Schema& schema) {
  using O = Deck::Optimizer;
  Rows<O> optimizer(schema, "optimizer", &Deck::optimizer, "How weights follow from gradients.");
  optimizer.add("name", &O::name, words({"adamw"}),
                {.fallback = literal("\"adamw\""), .help = "The optimizer.", .also = "type"});
  optimizer.add("lr", &O::lr, Number{0, 1000},
                {.fallback = literal("1e-3"),
                 .help = "Learning rate after warm-up.",
                 .on_resume = OnResume::may_change,
                 .also = "learning_rate base_lr max_lr"});
  optimizer.add("min_lr", &O::min_lr, Number{0, 1000},
                {.fallback = literal("0.0"),
                 .help = "Learning rate at the end of a cosine or linear decay.",
                 .on_resume = OnResume::may_change,
                 .also = "lr_min final_lr"});
  optimizer.add(
      "warmup_steps", &O::warmup_steps, Integer{0},
      {.fallback = literal("0"),
       .unit = "steps",
       .help = "Steps over which the learning rate rises linearly from lr / warmup_steps.",
       .on_resume = OnResume::may_change,
       .also = "warmup warmup_iters"});
  optimizer.add("schedule", &O::schedule,
                Choice<LearningRateSchedule>{{{"constant", LearningRateSchedule::constant},
                                              {"cosine", LearningRateSchedule::cosine},
                                              {"linear", LearningRateSchedule::linear}}},
                {.fallback = literal("\"cosine\""),
                 .help = "Course of the learning rate after warm-up.",
                 .on_resume = OnResume::may_change,
                 .also = "lr_schedule decay scheduler"});
  optimizer.add("weight_decay", &O::weight_decay, Number{0, 1000},
                {.fallback = literal("0.05"),
                 .help = "Decoupled decay of matrices; biases, norms, position embedding and class "
                         "token have none.",
                 .also = "wd"});
  optimizer.add("betas", &O::betas, Numbers{"2 numbers", {0, 1, Edge::closed, Edge::open}},
                {.fallback = literal("[0.9, 0.999]"),
                 .help = "How slowly Adam's first and second moments move.",
                 .also = "beta1 beta2"});
  optimizer.add("eps", &O::eps, Number{0, 1, Edge::open},
                {.fallback = literal("1e-8"),
                 .help = "Added to the root of the second moment.",
                 .also = "epsilon"});
  optimizer.add("clip", &O::clip, Number{0, 1e9},
                {.fallback = literal("1.0"),
                 .help = "Largest global gradient norm; a larger one is scaled down to it. 0 turns "
                         "clipping off.",
                 .also = "grad_clip max_norm clip_norm max_grad_norm"});
  optimizer.add(
      "clip_norm_from", &O::clip_norm_from,
      Choice<ClipNorm>{
          {{"this_step", ClipNorm::this_step}, {"previous_step", ClipNorm::previous_step}}},
      {.fallback = literal("\"this_step\""),
       .help =
           "Whose gradient norm is clipped by. \"previous_step\" is another rule: gradients are "
           "scaled by min(1, clip / norm of the step before), in the first step by 1. A chunk "
           "is then updated as soon as its gradients are there, so an optimizer on the host "
           "works while backward does. A gradient that is not finite ends the run. f32 and bf16 "
           "only.",
       .on_resume = OnResume::may_change,
       .also = "delayed_clip async_optimizer"});
  optimizer.add(
      "zero", &O::zero, Integer{0, 1},
      {.fallback = literal("1"),
       .help = "1: each data rank owns a part of the master weights and moments (ZeRO-1). "
               "0: each holds all of them.",
       .on_resume = OnResume::may_change,
       .also = "zero_stage"});
  optimizer.add(
      "moments", &O::moments,
      Choice<MomentStore>{{{"f32", MomentStore::f32}, {"int8", MomentStore::int8}}},
      {.fallback = literal("\"f32\""),
       .help = "Type in which moments are kept. \"int8\": a byte each and a scale a block of "
               "256, for an optimizer on host or nvme.",
       .on_resume = OnResume::may_change,
       .also = "state_dtype optimizer_bits"});
  optimizer.add(
      "ema", &O::ema, Number{0, 1, Edge::closed, Edge::open},
      {.fallback = literal("0.0"),
       .help = "Keep a moving average of the weights, of which each step leaves this share "
               "(0.9999, say), and evaluate it in their place. 0: none.",
       .on_resume = OnResume::may_change,
       .also = "ema_decay model_ema"});
  optimizer.add(
      "freeze", &O::freeze, Texts{"a pattern of names"},
      {.fallback = literal("[]"),
       .help = "Parameters that stay as they are, by their names in checkpoints and "
               "exported files (\"blocks.0.attn.qkv.weight\", \"head.bias\"); * stands for "
               "any characters, ? for one. A pattern that names none is an error.",
       .also = "frozen freeze_layers freeze_patterns"});
  optimizer.add("layer_decay", &O::layer_decay, Number{0, 1, Edge::open},
                {.fallback = literal("1.0"),
                 .help = "Factor on the learning rate from each layer to the one below it, for "
                         "fine-tuning: block b of depth d learns at lr * layer_decay^(d - b), the "
                         "embedding at lr * layer_decay^(d + 1), the head at lr. 1: all alike.",
                 .also = "lr_decay layer_wise_decay layerwise_lr_decay llrd"});
}

void add_memory(Schema& schema) {
  using M = Deck::Memory;
  Rows<M> memory(schema, "memory", &Deck::memory,
                 "Where things live and what is computed twice to save memory.");
  memory.add("checkpoint_every", &M::checkpoint_every, WordOr{"chunk", Integer{1, 10000}},
             {.fallback = literal("1"),
              .unit = "layers",
              .help = "With recompute = \"layers\": keep the input of every so many layers, never "
                      "across chunks; \"chunk\" keeps only each chunk's.",
              .on_resume = OnResume::may_change,
              .also = "recompute_every"});
  memory.add("recompute", &M::recompute,
             Choice<Recompute>{{{"none", Recompute::none},
                                {"layers", Recompute::layers},
                                {"selective", Recompute::selective}}},
             {.fallback = derived("\"layers\" when checkpoint_every is given, else \"none\"",
                                  [](Deck& deck, const Given& given) {
                                    deck.memory.recompute = given("memory.checkpoint_every")
                                                                ? Recompute::layers
                                                                : Recompute::none;
                                  }),
              .help = "What backward computes again: nothing; whole layers; or only what is large "
                      "and cheap.",
              .on_resume = OnResume::may_change,
              .also = "recomputation checkpointing activation_checkpointing"});
  memory.add("activations", &M::activations,
             Choice<ActivationStore>{{{"working", ActivationStore::working},
                                      {"int8", ActivationStore::int8},
                                      {"host", ActivationStore::host}}},
             {.fallback = literal("\"working\""),
              .help = "How activations wait for backward: in the working type, in 8 bits (what is "
                      "cheap is then computed again), or in host memory.",
              .on_resume = OnResume::may_change});
  memory.add("gradients", &M::gradients,
             Choice<GradientStore>{{{"auto", GradientStore::automatic},
                                    {"f32", GradientStore::f32},
                                    {"working", GradientStore::working}}},
             {.fallback = literal("\"auto\""),
              .help = "Type in which gradients leave for the optimizer. \"auto\": the working type "
                      "for an optimizer on host or nvme, else f32.",
              .on_resume = OnResume::may_change});
  memory.add("optimizer", &M::optimizer, home(),
             {.fallback = literal("\"device\""),
              .help = "Home of master weights and moments.",
              .on_resume = OnResume::may_change,
              .also = "offload optimizer_home"});
  memory.add("weights", &M::weights, home(),
             {.fallback = literal("\"device\""),
              .help = "Home of the working weights; from host or nvme they stream in, chunk by "
                      "chunk.",
              .on_resume = OnResume::may_change,
              .also = "parameters weights_home"});
  memory.add(
      "nvme_dir", &M::nvme_dir, Text{"a folder name"},
      {.fallback = literal("\"\""),
       .help = "Folder on a fast disk of each machine that runs a rank, for what has its home "
               "on nvme. The files there go when the run ends, however it ends.",
       .on_resume = OnResume::may_change,
       .also = "nvme_path swap_dir offload_dir",
       .naming = KeyNaming::file});
  memory.add("device_limit", &M::device_limit_bytes, Bytes{},
             {.fallback = not_set("what the device has"),
              .help = "Device memory that a rank may use; the plan must fit.",
              .on_resume = OnResume::may_change,
              .also = "gpu_memory device_memory"});
  memory.add("host_limit", &M::host_limit_bytes, Bytes{},
             {.fallback = not_set("what the machine has"),
              .help = "Host memory that all ranks of a machine together may use.",
              .on_resume = OnResume::may_change,
              .also = "host_memory ram"});
}

}  // namespace

void add_training(Schema& schema) {
  add_precision(schema);
  add_optimizer(schema);
  add_memory(schema);
}

}  // namespace voltapile
