// The table's first part: the run, the model, the mesh and the batch.
#include "schema.hpp"

#include <algorithm>
#include <filesystem>

namespace voltapile {

namespace {

// Few enough samples for little memory, enough micro-batches to keep the pipeline busy: at least
// two for each pipeline rank, and a multiple of them, which the interleaved schedule asks for.
int64_t micro_for(const Deck& deck) {
  const int64_t ranks = std::max(deck.parallel.data, 1), pipeline = deck.parallel.pipeline;
  if (deck.batch.global % ranks != 0) return 1;
  const int64_t samples = deck.batch.global / ranks;
  for (int64_t micro = std::min<int64_t>(samples, 64); micro > 1; --micro) {
    if (samples % micro != 0) continue;
    const int64_t micros = samples / micro;
    if (pipeline <= 1 || (micros >= 2 * pipeline && micros % pipeline == 0)) return micro;
  }
  return 1;
}

void add_run(Schema& schema) {
  using R = Deck::Run;
  Rows<R> run(schema, "run", &Deck::run, "What to run, where, and for how long.");
  run.add("name", &R::name, FolderName{},
          {.fallback = derived("the deck file's name without .toml",
                               [](Deck& deck, const Given&) {
                                 const auto stem = std::filesystem::path(deck.path).stem().string();
                                 if (!FolderName{}.read({stem}, deck.run.name))
                                   deck.run.name = "run";
                               }),
           .help = "Name of the run; its files go into the folder run.dir/run.name.",
           .on_resume = OnResume::may_change});
  run.add("dir", &R::dir, Text{"a folder"},
          {.fallback = literal("\"runs\""),
           .help = "Folder of all runs, relative to where the program is started.",
           .on_resume = OnResume::may_change,
           .also = "output output_dir folder"});
  run.add("device", &R::device,
          Choice<DeviceKind>{{{"cpu", DeviceKind::cpu}, {"cuda", DeviceKind::cuda}}},
          {.fallback = literal("\"cpu\""),
           .help = "What computes.",
           .on_resume = OnResume::may_change,
           .also = "backend",
           .words = "gpu=cuda nvidia=cuda"});
  run.add("steps", &R::steps, Integer{1},
          {.fallback = not_set("give steps or epochs"),
           .unit = "steps",
           .help = "Optimizer steps of the whole run. Give steps or epochs, not both; `--set "
                   "run.steps=N` takes the place of either.",
           .on_resume = OnResume::may_change,
           .also = "max_steps iterations train_steps"});
  run.add("epochs", &R::epochs, Number{0, 1e6, Edge::open},
          {.fallback = not_set("give steps or epochs"),
           .unit = "epochs",
           .help = "Passes over the training pictures; may be a fraction.",
           .on_resume = OnResume::may_change,
           .also = "max_epochs num_epochs"});
  run.add(
      "seed", &R::seed, Integer{0},
      {.fallback = literal("1"),
       .help = "Initial weights, order of pictures, augmentation and drop path depend on it and "
               "on nothing else, not even the mesh.",
       .also = "random_seed"});
  run.add("walltime", &R::walltime_seconds, Seconds{},
          {.fallback = not_set("no limit"),
           .help = "Save a checkpoint and stop with exit code 75 before this time is up.",
           .on_resume = OnResume::may_change,
           .also = "time time_limit"});
  run.add("threads", &R::threads, WordOr{"auto", Integer{1, 1024}},
          {.fallback = literal("\"auto\""),
           .unit = "threads",
           .help = "CPU threads of each rank; results do not depend on it. \"auto\": the machine's "
                   "cores divided by the ranks on it.",
           .on_resume = OnResume::may_change,
           .also = "num_threads cpus"});
  run.add("log_every", &R::log_every, Integer{1, 1'000'000},
          {.fallback = literal("10"),
           .unit = "steps",
           .help = "Steps between progress lines when the output is not a terminal.",
           .on_resume = OnResume::may_change,
           .also = "log_interval log_steps"});
  run.add("gpu_kernels", &R::gpu_kernels,
          Choice<GpuKernels>{{{"auto", GpuKernels::automatic}, {"volta", GpuKernels::volta}}},
          {.fallback = literal("\"auto\""),
           .help = "Kernels on a GPU. \"auto\": those made for it; \"volta\": those of a V100, to "
                   "try them on a later GPU.",
           .on_resume = OnResume::may_change,
           .words = "sm_70=volta v100=volta"});
  run.add(
      "hang_timeout", &R::hang_timeout_seconds, WordOr{"auto", Seconds{}},
      {.fallback = literal("\"auto\""),
       .help = "A job in which nothing moves for this time while it trains is ended with exit "
               "code 5, and the rank that holds it up is named; ten times as long counts where "
               "no step is measured (start, first step, evaluation, saving). \"auto\": 20 times "
               "the longest step, at least a minute; half an hour where none is measured.",
       .on_resume = OnResume::may_change,
       .also = "timeout watchdog hang_limit"});
  run.add(
      "check_every_steps", &R::check_every_steps, Integer{0, 1'000'000'000},
      {.fallback = literal("0"),
       .unit = "steps",
       .help = "Steps between checks for silent corruption, which are also made before each "
               "checkpoint: state that several ranks hold is compared bit by bit, and one chunk "
               "of each rank is computed twice. A difference ends the run with exit code 5 and "
               "names the rank. 0 turns them off.",
       .on_resume = OnResume::may_change,
       .also = "check_steps integrity"});
  run.add("skip_limit", &R::skip_limit, Integer{1, 1'000'000},
          {.fallback = literal("50"),
           .unit = "steps",
           .help = "A run has diverged when so many steps in a row were skipped because a gradient "
                   "was not finite, or when the loss of one that was not skipped is not finite.",
           .on_resume = OnResume::may_change,
           .also = "max_skipped skipped_steps nan_limit"});
  run.add("spike_factor", &R::spike_factor, Number{0, 1e6},
          {.fallback = literal("0.0"),
           .help = "A run has also diverged when the loss of a step is more than this many times "
                   "the mean of the 20 sound steps before it. 0: the loss may jump.",
           .on_resume = OnResume::may_change,
           .also = "loss_spike spike_threshold max_loss"});
  run.add("on_divergence", &R::on_divergence,
          Choice<OnDivergence>{{{"stop", OnDivergence::stop}, {"rewind", OnDivergence::rewind}}},
          {.fallback = literal("\"stop\""),
           .help = "What a run that has diverged does. \"stop\": end with exit code 5 and the "
                   "cause. \"rewind\": go back to the last checkpoint whose next step was sound "
                   "(to the start, if there is none yet) and on from there with the pictures in "
                   "the order and augmentation of another seed.",
           .on_resume = OnResume::may_change,
           .also = "on_nan on_spike divergence",
           .words = "abort=stop exit=stop rollback=rewind restore=rewind"});
  run.add("rewind_limit", &R::rewind_limit, Integer{1, 1000},
          {.fallback = literal("3"),
           .help = "How often a run may go back before it stops instead.",
           .on_resume = OnResume::may_change,
           .also = "rewinds max_rewinds rollback_limit"});
}

void add_model(Schema& schema) {
  using M = Deck::Model;
  Rows<M> model(schema, "model", &Deck::model,
                "The Vision Transformer (pre-norm, exact GELU; parameter names as timm's).");
  model.add("image", &M::image, OneOrTwo{1, 65536},
            {.fallback = required(),
             .unit = "pixels",
             .help = "Height and width of a picture.",
             .also = "image_size img_size input_size resolution"});
  model.add("channels", &M::channels, Integer{1, 4096},
            {.fallback = literal("3"),
             .help = "Values of a pixel: 3 for colour, 1 for grey.",
             .also = "in_chans in_channels num_channels"});
  model.add(
      "patch", &M::patch, OneOrTwo{1, 4096},
      {.fallback = required(),
       .unit = "pixels",
       .help = "Height and width of a patch; each becomes one token. Must divide model.image.",
       .also = "patch_size"});
  model.add("dim", &M::dim, Integer{1, 1 << 20},
            {.fallback = required(),
             .help = "Width of a token's vector. model.heads must divide it.",
             .also = "embed_dim hidden_size hidden width d_model hidden_dim"});
  model.add("depth", &M::depth, Integer{1, 10000},
            {.fallback = required(),
             .unit = "blocks",
             .help = "Transformer blocks, one after the other.",
             .also = "layers num_layers blocks n_layers"});
  model.add("heads", &M::heads, Integer{1, 65536},
            {.fallback = required(),
             .help = "Attention heads of a block; each works on dim / heads values. "
                     "parallel.tensor must divide it.",
             .also = "num_heads attention_heads n_heads"});
  model.add(
      "mlp", &M::mlp, Integer{1, 1 << 22},
      {.fallback = derived("4 * model.dim",
                           [](Deck& deck, const Given&) { deck.model.mlp = 4 * deck.model.dim; }),
       .help = "Hidden width of a block's two-layer perceptron.",
       .also = "mlp_dim ffn hidden_mlp mlp_ratio intermediate_size"});
  model.add("classes", &M::classes, Integer{1, 1 << 24},
            {.fallback = required(),
             .help = "Classes to tell apart; labels run from 0 to classes - 1.",
             .also = "num_classes labels n_classes"});
  model.add("pool", &M::pool, Choice<Pool>{{{"mean", Pool::mean}, {"token", Pool::token}}},
            {.fallback = literal("\"mean\""),
             .help = "What the head sees: the mean of all tokens, or an extra class token.",
             .also = "global_pool pooling",
             .words = "avg=mean gap=mean cls=token"});
  model.add("position", &M::position,
            Choice<Position>{{{"learned", Position::learned}, {"sine2d", Position::sine2d}}},
            {.fallback = literal("\"learned\""),
             .help = "Position embedding: learned, or a fixed two-dimensional sine table.",
             .also = "pos_embed position_embedding"});
  model.add("qkv_bias", &M::qkv_bias, Flag{},
            {.fallback = literal("true"), .help = "Biases on query, key and value."});
  model.add("layer_scale", &M::layer_scale, Number{0, 100},
            {.fallback = literal("0.0"),
             .help = "Initial value of LayerScale, a learned factor for each channel of a block's "
                     "branches; 0 leaves it out.",
             .also = "init_values layerscale"});
  model.add("qk_norm", &M::qk_norm, Flag{},
            {.fallback = literal("false"),
             .help = "Layer norm on each head's queries and keys; steadies large models."});
  model.add("drop_path", &M::drop_path, Number{0, 1, Edge::closed, Edge::open},
            {.fallback = literal("0.0"),
             .help = "Chance to skip the last block's branches for a sample; earlier blocks skip "
                     "less, growing linearly from 0.",
             .also = "drop_path_rate stochastic_depth"});
  model.add("initial_std", &M::initial_std, Number{0, 10, Edge::open},
            {.fallback = literal("0.02"),
             .help = "Standard deviation of the initial weights (a normal distribution cut at two "
                     "deviations).",
             .also = "init_std initializer_range"});
  model.add(
      "init", &M::init, Text{"a file or folder name"},
      {.fallback = literal("\"\""),
       .help = "First weights: a safetensors file (timm's or HuggingFace's ViT), a run's "
               "folder, which stands for its latest checkpoint, or a step's. Moments, step and "
               "data begin anew. A head for other classes is new; positions of another grid "
               "are resized.",
       .on_resume = OnResume::may_change,
       .also = "pretrained weights init_from finetune",
       .naming = KeyNaming::file});
}

void add_parallel(Schema& schema) {
  using P = Deck::Parallel;
  Rows<P> parallel(
      schema, "parallel", &Deck::parallel,
      "The mesh. The run needs pipeline * data * tensor ranks: `mpirun -n` that many.");
  parallel.add("pipeline", &P::pipeline, Integer{1, 4096},
               {.fallback = literal("1"),
                .unit = "ranks",
                .help = "Pipeline axis: ranks that hold different layers.",
                .on_resume = OnResume::may_change,
                .also = "pp pipeline_parallel"});
  parallel.add("data", &P::data, Integer{1, 65536},
               {.fallback = literal("1"),
                .unit = "ranks",
                .help = "Data axis: ranks that hold the same layers and see different pictures.",
                .on_resume = OnResume::may_change,
                .also = "dp data_parallel"});
  parallel.add("tensor", &P::tensor, Integer{1, 4096},
               {.fallback = literal("1"),
                .unit = "ranks",
                .help = "Tensor axis: ranks that share each matrix product.",
                .on_resume = OnResume::may_change,
                .also = "tp tensor_parallel"});
  parallel.add("sequence", &P::sequence,
               Switch<Sequence>{Sequence::on, Sequence::off, Sequence::automatic},
               {.fallback = literal("\"auto\""),
                .help = "Sequence parallelism: divide the tokens over the tensor axis where the "
                        "matrices are not. `plan` prints what \"auto\" became.",
                .on_resume = OnResume::may_change,
                .also = "sequence_parallel sp"});
  parallel.add("chunks", &P::chunks, Integer{1, 4096},
               {.fallback = literal("1"),
                .help = "Chunks of consecutive layers on each pipeline rank. More chunks make a "
                        "smaller bubble and more messages.",
                .on_resume = OnResume::may_change,
                .also = "virtual_stages interleave num_chunks"});
  parallel.add("schedule_file", &P::schedule_file, Text{"a file name"},
               {.fallback = literal("\"\""),
                .help = "A schedule of your own as text, for schedule = \"file\".",
                .on_resume = OnResume::may_change,
                .naming = KeyNaming::file});
  parallel.add(
      "schedule", &P::schedule,
      words({"gpipe", "1f1b", "interleaved", "breadth_first", "zero_bubble_h1", "file"}),
      {.fallback = derived("\"file\" with a schedule_file; else \"1f1b\" for one chunk, "
                           "\"breadth_first\" for more",
                           [](Deck& deck, const Given&) {
                             auto& p = deck.parallel;
                             p.schedule = !p.schedule_file.empty() ? "file"
                                          : p.chunks == 1          ? "1f1b"
                                                                   : "breadth_first";
                           }),
       .help = "Order of forward and backward on the pipeline. gpipe, 1f1b and zero_bubble_h1 take "
               "one chunk a rank; interleaved needs micro-batches in multiples of pipeline.",
       .on_resume = OnResume::may_change});
  parallel.add("transport", &P::transport,
               Choice<Transport>{{{"auto", Transport::automatic},
                                  {"nccl", Transport::nccl},
                                  {"staged", Transport::staged}}},
               {.fallback = literal("\"auto\""),
                .help = "How tensors travel between GPUs. nccl: directly, one rank a GPU. staged: "
                        "through the hosts' memory and MPI, for ranks that share a GPU and where "
                        "there is no NCCL. \"auto\": nccl, unless ranks share a GPU; `train` "
                        "prints what it became.",
                .on_resume = OnResume::may_change,
                .also = "comm communication",
                .words = "mpi=staged host=staged"});
}

void add_batch(Schema& schema) {
  using B = Deck::Batch;
  Rows<B> batch(schema, "batch", &Deck::batch, "How many pictures at a time.");
  batch.add("global", &B::global, Integer{1, 1 << 24},
            {.fallback = required(),
             .unit = "samples",
             .help = "Samples of one optimizer step, over all ranks. A multiple of parallel.data * "
                     "batch.micro.",
             .also = "batch_size size global_batch_size"});
  batch.add(
      "micro", &B::micro, Integer{1, 1 << 20},
      {.fallback = derived("the largest size up to 64 that gives each data rank a multiple of "
                           "parallel.pipeline micro-batches, at least two for each",
                           [](Deck& deck, const Given&) { deck.batch.micro = micro_for(deck); }),
       .unit = "samples",
       .help = "Samples of a micro-batch: what one rank computes at a time.",
       .on_resume = OnResume::may_change,
       .also = "micro_batch_size microbatch"});
}

}  // namespace

void add_run_and_model(Schema& schema) {
  add_run(schema);
  add_model(schema);
  Rows<Deck::Loss> loss(schema, "loss", &Deck::loss, "Cross-entropy.");
  loss.add("label_smoothing", &Deck::Loss::label_smoothing, Number{0, 1, Edge::closed, Edge::open},
           {.fallback = literal("0.0"),
            .help = "Share of the target spread evenly over all classes.",
            .also = "smoothing"});
  add_parallel(schema);
  add_batch(schema);
}

const Row* Schema::find(std::string_view section, std::string_view key) const {
  const auto found = std::find_if(rows.begin(), rows.end(), [&](const Row& row) {
    return row.section == section && row.key == key;
  });
  return found == rows.end() ? nullptr : &*found;
}

bool Schema::has_section(std::string_view name) const {
  return std::any_of(sections.begin(), sections.end(),
                     [&](const SectionInfo& section) { return section.name == name; });
}

const Schema& schema() {
  static const Schema table = [] {
    Schema schema;
    add_run_and_model(schema);
    add_training(schema);
    add_data_and_output(schema);
    for (Row& row : schema.rows)
      if (row.notes.fallback.kind == Fallback::Kind::literal)
        row.literal = read_value(row.notes.fallback.text);
    return schema;
  }();
  return table;
}

}  // namespace voltapile
