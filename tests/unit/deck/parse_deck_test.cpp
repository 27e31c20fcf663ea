#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "voltapile/base/error.hpp"
#include "voltapile/deck/parse.hpp"

namespace voltapile {

namespace {

namespace fs = std::filesystem;

const std::string kShort =
    "run.steps = 100\n"
    "model = { image = 32, patch = 4, dim = 64, depth = 4, heads = 4, classes = 10 }\n"
    "batch.global = 32\n"
    "data.format = \"synthetic\"\n";

Deck short_deck(const std::vector<std::string>& overrides = {}) {
  return parse_deck(kShort, "decks/short.toml", overrides);
}

}  // namespace

TEST(ParseDeck, ShortDeckGetsTheStatedDefaults) {
  const Deck deck = short_deck();
  EXPECT_EQ(deck.run.name, "short");
  EXPECT_EQ(deck.run.dir, "runs");
  EXPECT_EQ(deck.run.device, DeviceKind::cpu);
  EXPECT_EQ(deck.run.steps, 100);
  EXPECT_FALSE(deck.run.epochs || deck.run.walltime_seconds);
  EXPECT_EQ(deck.run.threads, 0);
  EXPECT_EQ(deck.model.channels, 3);
  EXPECT_EQ(deck.model.mlp, 256);
  EXPECT_EQ(deck.model.pool, Pool::mean);
  EXPECT_EQ(deck.model.initial_std, 0.02);
  EXPECT_TRUE(deck.model.qkv_bias);
  EXPECT_EQ(deck.parallel.pipeline * deck.parallel.data * deck.parallel.tensor, 1);
  EXPECT_EQ(deck.parallel.schedule, "1f1b");
  EXPECT_EQ(deck.parallel.sequence, Sequence::automatic);
  EXPECT_EQ(deck.batch.micro, 32);
  EXPECT_EQ(deck.precision.type, DType::f32);
  EXPECT_EQ(deck.precision.loss_scale, 1.0);
  EXPECT_EQ(deck.optimizer.name, "adamw");
  EXPECT_EQ(deck.optimizer.betas, (std::array<double, 2>{0.9, 0.999}));
  EXPECT_EQ(deck.optimizer.clip, 1.0);
  EXPECT_EQ(deck.memory.recompute, Recompute::none);
  EXPECT_EQ(deck.memory.gradients, GradientStore::automatic);
  EXPECT_FALSE(deck.memory.device_limit_bytes);
  EXPECT_EQ(deck.data.mean, (std::vector<double>{0.5, 0.5, 0.5}));
  EXPECT_EQ(deck.data.workers, 0);
  EXPECT_EQ(deck.checkpoint.keep_last, 3);
  EXPECT_TRUE(deck.checkpoint.at_end);
}

TEST(ParseDeck, AByteOrderMarkIsNoPartOfIt) {
  EXPECT_EQ(parse_deck(std::string("\xEF\xBB\xBF") + kShort, "decks/short.toml"), short_deck());
}

TEST(ParseDeck, EveryNotationOfAValue) {
  const Deck deck =
      short_deck({"model.image=[32, 64]", "model.patch=[4, 8]", "run.walltime=71h30m",
                  "run.threads=3", "memory.device_limit=32 GB", "memory.host_limit=\"512 GiB\"",
                  "memory.checkpoint_every=chunk", "parallel.sequence=false", "precision.type=f16",
                  "precision.loss_scale=1024", "optimizer.lr=1", "trace.steps=100:105",
                  "data.workers=auto", "run.name=007"});
  EXPECT_EQ(deck.model.image, (std::array<int64_t, 2>{32, 64}));
  EXPECT_EQ(deck.model.patch, (std::array<int64_t, 2>{4, 8}));
  EXPECT_EQ(deck.run.walltime_seconds, 71.5 * 3600);
  EXPECT_EQ(deck.run.threads, 3);
  EXPECT_EQ(deck.memory.device_limit_bytes, 32'000'000'000);
  EXPECT_EQ(deck.memory.host_limit_bytes, int64_t{512} << 30);
  EXPECT_FALSE(deck.memory.checkpoint_every);
  EXPECT_EQ(deck.parallel.sequence, Sequence::off);
  EXPECT_EQ(deck.precision.type, DType::f16);
  EXPECT_EQ(deck.precision.loss_scale, 1024.0);
  EXPECT_EQ(deck.optimizer.lr, 1.0);
  EXPECT_EQ(deck.trace.steps, "100:105");
  EXPECT_EQ(deck.run.name, "007");
}

TEST(ParseDeck, ValuesThatFollowFromOthers) {
  EXPECT_EQ(short_deck({"memory.checkpoint_every=2"}).memory.recompute, Recompute::layers);
  EXPECT_EQ(short_deck({"memory.checkpoint_every=2"}).memory.checkpoint_every, 2);
  EXPECT_FALSE(short_deck({"precision.type=f16"}).precision.loss_scale);
  EXPECT_EQ(short_deck({"parallel.chunks=2"}).parallel.schedule, "breadth_first");
  EXPECT_EQ(short_deck({"parallel.schedule_file=s.txt"}).parallel.schedule, "file");
  EXPECT_EQ(short_deck({"model.channels=1"}).data.std.size(), 1u);
  EXPECT_EQ(short_deck({"model.dim=128"}).model.mlp, 512);
}

// Micro-batches fill the pipeline evenly: at least two for each of its ranks, a multiple of them.
TEST(ParseDeck, MicroBatchFollowsFromBatchAndMesh) {
  const auto micro = [](int global, int pipeline, int data) {
    return short_deck({"batch.global=" + std::to_string(global),
                       "parallel.pipeline=" + std::to_string(pipeline),
                       "parallel.data=" + std::to_string(data)})
        .batch.micro;
  };
  EXPECT_EQ(micro(256, 1, 1), 64);
  EXPECT_EQ(micro(128, 2, 2), 16);
  EXPECT_EQ(micro(96, 3, 1), 16);
  EXPECT_EQ(micro(7, 2, 1), 1);
  EXPECT_EQ(micro(10, 1, 3), 1);
}

TEST(ParseDeck, LastOverrideWinsAndReplacesTheFile) {
  const Deck deck = short_deck({"model.dim=128", "model.dim=256", " model.depth = 2 "});
  EXPECT_EQ(deck.model.dim, 256);
  EXPECT_EQ(deck.model.depth, 2);
}

// `--set run.steps=20` shortens any deck, also one that counts epochs.
TEST(ParseDeck, OverrideOfStepsTakesThePlaceOfEpochs) {
  const Deck epochs = short_deck({"run.epochs=2.5"});
  EXPECT_EQ(epochs.run.epochs, 2.5);
  EXPECT_FALSE(epochs.run.steps);
  const Deck steps = parse_deck(write_deck(epochs), "x.toml", {"run.steps=20"});
  EXPECT_EQ(steps.run.steps, 20);
  EXPECT_FALSE(steps.run.epochs);
}

TEST(ParseDeck, FileNamesAreRelativeToTheDecksFolder) {
  const std::string text =
      "[run]\nsteps = 1\n[model]\nimage = 28\nchannels = 1\npatch = 7\ndim = 8\ndepth = 1\nheads = "
      "2\n"
      "classes = 10\n[batch]\nglobal = 2\n[data]\nformat = \"idx\"\n"
      "train = \"../pictures/train-images-idx3-ubyte.gz\"\ntest = "
      "\"/data/t10k-images-idx3-ubyte\"\n";
  const Deck deck = parse_deck(text, "/home/me/decks/mnist.toml");
  EXPECT_EQ(deck.data.train, "/home/me/pictures/train-images-idx3-ubyte.gz");
  EXPECT_EQ(deck.data.train_labels, "/home/me/pictures/train-labels-idx1-ubyte.gz");
  EXPECT_EQ(deck.data.test, "/data/t10k-images-idx3-ubyte");
  EXPECT_EQ(deck.data.test_labels, "/data/t10k-labels-idx1-ubyte");
  const Deck relative = parse_deck(text, "decks/mnist.toml", {"data.test_labels=own-labels"});
  EXPECT_EQ(relative.data.train,
            (fs::current_path() / "pictures/train-images-idx3-ubyte.gz").string());
  EXPECT_EQ(relative.data.test_labels, (fs::current_path() / "decks/own-labels").string());
}

TEST(ParseDeck, TakesOnePatternOrAListOfThem) {
  const auto freeze = [](const std::string& value) {
    return parse_deck(kShort, "short.toml", {"optimizer.freeze=" + value}).optimizer.freeze;
  };
  EXPECT_EQ(freeze("[]"), std::vector<std::string>{});
  EXPECT_EQ(freeze("\"head.*\""), std::vector<std::string>{"head.*"});
  EXPECT_EQ(freeze("blocks.*"), std::vector<std::string>{"blocks.*"});
  EXPECT_EQ(freeze("['*_embed*', \"blocks.[0-3].*\"]"),
            (std::vector<std::string>{"*_embed*", "blocks.[0-3].*"}));
  for (const char* wrong : {"[\"blocks.*\", 3]", "[\"\"]", "\"\"", "3", "true", "[[\"a\"]]"}) {
    try {
      parse_deck(std::string(kShort) + "\n[optimizer]\nfreeze = " + wrong, "short.toml");
      ADD_FAILURE() << wrong;
    } catch (const Error& error) {
      EXPECT_NE(
          std::string(error.what()).find("must be a pattern of names in quotes, or a list of them"),
          std::string::npos)
          << error.what();
    }
  }
}

TEST(ParseDeck, LoadsAFileAndSaysWhyItCannot) {
  const fs::path folder = fs::path(testing::TempDir()) / "voltapile_load_deck";
  fs::create_directories(folder);
  std::ofstream(folder / "quickstart.toml") << kShort;
  EXPECT_EQ(load_deck((folder / "quickstart.toml").string()).run.name, "quickstart");
  const auto message = [](const fs::path& path) {
    try {
      load_deck(path.string());
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::bad_input);
      return std::string(error.what());
    }
    return std::string("no error");
  };
  EXPECT_EQ(message(folder / "quikstart.toml"), (folder / "quikstart.toml").string() +
                                                    ": no such file; did you mean " +
                                                    (folder / "quickstart.toml").string() + "?");
  EXPECT_EQ(message(folder),
            folder.string() + ": a folder; give the deck's file, such as quickstart.toml");
  EXPECT_EQ(message("/nowhere/at/all.toml"), "/nowhere/at/all.toml: no such file");
  fs::remove_all(folder);
}

TEST(Nearest, SuggestsSlipsAndNothingElse) {
  const std::vector<std::string> known = {"depth", "dim", "heads", "warmup_steps"};
  EXPECT_EQ(nearest("detph", known), "depth");
  EXPECT_EQ(nearest("Heads", known), "heads");
  EXPECT_EQ(nearest("head", known), "heads");
  EXPECT_EQ(nearest("warmup", known), "warmup_steps");
  EXPECT_EQ(nearest("zebra", known), "");
  EXPECT_EQ(nearest("", known), "");
  EXPECT_EQ(nearest("x", {}), "");
}

}  // namespace voltapile
