// What write_deck writes reads back as the same deck, whatever the deck.
#include <bit>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "voltapile/deck/parse.hpp"

namespace voltapile {

namespace {

// A valid deck in which every key is drawn at random.
class RandomDeck {
 public:
  explicit RandomDeck(uint64_t seed) : random_(seed) {}

  Deck draw() {
    Deck deck;
    deck.path = "/decks/random.toml";
    draw_run(deck.run);
    draw_model(deck.model);
    deck.loss.label_smoothing = real(0, 0.9);
    draw_parallel(deck.parallel);
    deck.parallel.transport = deck.run.device == DeviceKind::cuda
                                  ? pick({Transport::automatic, Transport::nccl, Transport::staged})
                                  : pick({Transport::automatic, Transport::staged});
    deck.batch.global = integer(1, 1 << 24);
    deck.batch.micro = integer(1, std::min<int64_t>(deck.batch.global, 1 << 20));
    draw_numbers(deck);
    draw_memory(deck.memory);
    draw_data(deck.data, static_cast<size_t>(deck.model.channels));
    deck.eval = {integer(0, 100000), integer(0, 1 << 20)};
    deck.checkpoint = {integer(0, 100000),
                       real(0, 1000),
                       integer(0, 100),
                       integer(0, 100000),
                       flag(),
                       integer(64 << 10, int64_t{1} << 40),
                       pick({SaveFault::stop, SaveFault::go_on}),
                       flag()};
    const int64_t first = integer(0, 1000);
    if (flag())
      deck.trace.steps = std::to_string(first) + ":" + std::to_string(first + integer(1, 9));
    deck.trace.gpu_seconds = flag() ? 0 : static_cast<double>(integer(1, 5000));
    return deck;
  }

 private:
  int64_t integer(int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random_);
  }
  bool flag() { return integer(0, 1) == 1; }
  // Full 53 bits half of the time, round numbers otherwise.
  double real(double low, double high) {
    const double value = std::uniform_real_distribution<double>(low, high)(random_);
    return flag() ? value : std::clamp(static_cast<double>(static_cast<float>(value)), low, high);
  }
  template <class T>
  T pick(std::initializer_list<T> options) {
    return *(options.begin() + integer(0, static_cast<int64_t>(options.size()) - 1));
  }
  std::string word(const std::string& front) {
    const std::vector<std::string> parts = {
        "a", " ", "\"", "\\", "'", "#", "=", "[x", "]", ".", "~", "\xC3\xA9", "\xF0\x9F\x94\x8B"};
    std::string text = front;
    for (int64_t i = integer(0, 8); i > 0; --i)
      text += parts[static_cast<size_t>(integer(0, static_cast<int64_t>(parts.size()) - 1))];
    return text;
  }

  void draw_run(Deck::Run& run) {
    run.name = word("run");
    run.dir = word("");
    run.device = pick({DeviceKind::cpu, DeviceKind::cuda});
    if (flag()) run.steps = integer(1, INT64_MAX);
    else run.epochs = real(0.001, 1e6);
    run.seed = static_cast<uint64_t>(integer(0, INT64_MAX));
    if (flag()) run.walltime_seconds = flag() ? real(1, 1e6) : integer(1, 1000000);
    run.threads = static_cast<int>(integer(0, 1024));
    run.skip_limit = integer(1, 1'000'000);
    run.spike_factor = real(0, 1e6);
    run.on_divergence = pick({OnDivergence::stop, OnDivergence::rewind});
    run.rewind_limit = integer(1, 1000);
    run.log_every = static_cast<int>(integer(1, 1000000));
    run.gpu_kernels = pick({GpuKernels::automatic, GpuKernels::volta});
    if (flag()) run.hang_timeout_seconds = integer(1, 1000000);
    run.check_every_steps = integer(0, 1000);
  }

  void draw_model(Deck::Model& model) {
    model.patch = {integer(1, 64), integer(1, 64)};
    model.image = {model.patch[0] * integer(1, 99), model.patch[1] * integer(1, 99)};
    model.channels = integer(1, 5);
    model.heads = integer(1, 64);
    model.dim = model.heads * 4 * integer(1, 99);
    model.depth = integer(1, 10000);
    model.mlp = integer(1, 1 << 22);
    model.classes = integer(1, 1 << 24);
    model.pool = pick({Pool::mean, Pool::token});
    model.position = pick({Position::learned, Position::sine2d});
    model.qkv_bias = flag();
    model.layer_scale = flag() ? 0 : real(0, 1);
    model.qk_norm = flag();
    model.drop_path = real(0, 0.99);
    model.initial_std = real(1e-6, 10);
    if (flag()) model.init = "/weights/" + word("own");
  }

  void draw_parallel(Deck::Parallel& parallel) {
    parallel.pipeline = static_cast<int>(integer(1, 4096));
    parallel.data = static_cast<int>(integer(1, 65536));
    parallel.tensor = static_cast<int>(integer(1, 4096));
    parallel.sequence = pick({Sequence::automatic, Sequence::on, Sequence::off});
    parallel.schedule = pick<std::string>(
        {"gpipe", "1f1b", "interleaved", "breadth_first", "zero_bubble_h1", "file"});
    if (parallel.schedule == "file") parallel.schedule_file = "/schedules/" + word("own");
    const bool one_chunk = parallel.schedule == "gpipe" || parallel.schedule == "1f1b" ||
                           parallel.schedule == "zero_bubble_h1";
    parallel.chunks = one_chunk ? 1 : static_cast<int>(integer(1, 4096));
  }

  void draw_numbers(Deck& deck) {
    auto& precision = deck.precision;
    precision.type = pick({DType::f32, DType::bf16, DType::f16});
    if (precision.type != DType::f16 || flag()) precision.loss_scale = real(1, 1e6);
    precision.initial_loss_scale = real(1, 1e12);
    precision.growth_interval = integer(1, 100000);
    precision.tf32 = flag();
    auto& optimizer = deck.optimizer;
    optimizer.name = "adamw";
    optimizer.lr = real(0, 10);
    optimizer.min_lr = optimizer.lr * real(0, 1);
    optimizer.warmup_steps = integer(0, 100000);
    optimizer.schedule = pick({LearningRateSchedule::constant, LearningRateSchedule::cosine,
                               LearningRateSchedule::linear});
    optimizer.weight_decay = real(0, 1);
    optimizer.betas = {real(0, 0.99), real(0, 0.9999)};
    optimizer.eps = real(1e-30, 1e-5);
    optimizer.clip = flag() ? 0 : real(0, 1e6);
    for (int64_t i = integer(0, 3); i > 0; --i) optimizer.freeze.push_back(word("blocks."));
    optimizer.layer_decay = real(1e-3, 1);
    optimizer.zero = static_cast<int>(integer(0, 1));
  }

  void draw_memory(Deck::Memory& memory) {
    if (flag()) memory.checkpoint_every = integer(1, 10000);
    memory.recompute = pick({Recompute::none, Recompute::layers, Recompute::selective});
    memory.activations =
        pick({ActivationStore::working, ActivationStore::int8, ActivationStore::host});
    memory.gradients = pick({GradientStore::automatic, GradientStore::f32, GradientStore::working});
    memory.optimizer = pick({Home::device, Home::host, Home::nvme});
    memory.weights = pick({Home::device, Home::host, Home::nvme});
    if (flag()) memory.device_limit_bytes = integer(1, int64_t{1} << 53);
    if (flag()) memory.host_limit_bytes = integer(1, 1 << 20) << pick({0, 20, 30});
  }

  void draw_data(Deck::Data& data, size_t channels) {
    data.format = pick({DataFormat::synthetic, DataFormat::idx, DataFormat::folder, DataFormat::tar,
                        DataFormat::hdf5});
    data.train = "/data/" + word("train");
    data.train_labels = "/data/" + word("labels");
    if (flag()) data.test = "/data/" + word("test");
    if (flag() || !data.test.empty()) data.test_labels = "/data/" + word("labels");
    data.synthetic_train = integer(1, int64_t{1} << 40);
    data.synthetic_test = integer(0, int64_t{1} << 40);
    for (size_t i = 0; i < channels; ++i) {
      data.mean.push_back(real(-10, 10));
      data.std.push_back(real(1e-6, 10));
    }
    data.flip = flag();
    data.shift = integer(0, 4096);
    data.workers = static_cast<int>(integer(0, 1024));
    data.prefetch_factor = static_cast<int>(integer(2, 64));
  }

  std::mt19937_64 random_;
};

}  // namespace

TEST(RoundTrip, RandomDecksReadBackAsTheyWere) {
  const uint64_t decks = std::getenv("VOLTAPILE_FULL") != nullptr ? 20000 : 500;
  for (uint64_t seed = 1; seed <= decks; ++seed) {
    const Deck deck = RandomDeck(seed).draw();
    const std::string text = write_deck(deck);
    const Deck again = parse_deck(text, deck.path);
    ASSERT_EQ(deck, again) << "seed " << seed << "\n" << text;
    ASSERT_EQ(write_deck(again), text) << "seed " << seed;
  }
}

// A row that read or wrote another key's member would make two keys differ, or none.
TEST(RoundTrip, TwoRandomDecksDifferInTheKeysThatCompareDecksNames) {
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    const Deck a = RandomDeck(seed).draw(), b = RandomDeck(seed + 1000).draw();
    EXPECT_TRUE(compare_decks(a, a).empty());
    EXPECT_EQ(a == b, compare_decks(a, b).empty());
  }
}

TEST(CompareDecks, NamesKeyValuesAndWhetherARunMayContinue) {
  const std::string text =
      "run.steps = 100\n"
      "model = { image = 32, patch = 4, dim = 64, depth = 4, heads = 4, classes = 10 }\n"
      "batch = { global = 32, micro = 8 }\n"
      "data.format = \"synthetic\"\n";
  const Deck before = parse_deck(text, "deck");
  const auto change = [&](const std::string& set) {
    const auto differences = compare_decks(before, parse_deck(text, "deck", {set}));
    EXPECT_EQ(differences.size(), 1u) << set;
    return differences.at(0);
  };
  const DeckDifference lr = change("optimizer.lr=0.5");
  EXPECT_EQ(lr.key, "optimizer.lr");
  EXPECT_EQ(lr.before, "0.001");
  EXPECT_EQ(lr.after, "0.5");
  EXPECT_EQ(change("run.walltime=90s").before, "not set");
  EXPECT_EQ(change("run.walltime=90s").after, "\"1m30s\"");
  for (const char* may : {"run.steps=7",
                          "run.walltime=2h",
                          "run.threads=2",
                          "run.log_every=3",
                          "optimizer.lr=0.1",
                          "optimizer.warmup_steps=5",
                          "optimizer.schedule=linear",
                          "optimizer.min_lr=1e-5",
                          "memory.device_limit=3 GB",
                          "memory.host_limit=3 GB",
                          "data.train=/x",
                          "data.test=/x",
                          "data.train_labels=/x",
                          "data.test_labels=/x",
                          "data.workers=2",
                          "data.prefetch_factor=5",
                          "eval.every_steps=5",
                          "checkpoint.every_steps=5",
                          "checkpoint.keep_last=1",
                          "model.init=/x",
                          "checkpoint.every_minutes=1.5",
                          "checkpoint.keep_every=100",
                          "checkpoint.on_error=continue",
                          "checkpoint.fallback=true",
                          "trace.steps=1:2",
                          "run.device=cuda",
                          "run.gpu_kernels=volta",
                          "parallel.pipeline=2",
                          "parallel.data=2",
                          "parallel.tensor=2",
                          "parallel.schedule=gpipe",
                          "parallel.sequence=true",
                          "batch.micro=4",
                          "precision.type=bf16",
                          "precision.tf32=true",
                          "optimizer.zero=0",
                          "memory.optimizer=host",
                          "memory.weights=host",
                          "memory.recompute=layers"})
    EXPECT_TRUE(change(may).may_change_on_resume) << may;
  for (const char* fixed :
       {"run.seed=2", "model.depth=5", "batch.global=64", "optimizer.weight_decay=0.2",
        "data.shift=1", "loss.label_smoothing=0.1"})
    EXPECT_FALSE(change(fixed).may_change_on_resume) << fixed;
}

}  // namespace voltapile
