// A run that diverges and goes back. The pictures of these runs are black but for some poisoned
// ones: white, which overflows f16, or with a label of their own, which makes the loss jump. Where
// they come up in a seed's order is known beforehand.
#include <fstream>
#include <set>

#include "voltapile/base/philox.hpp"
#include "voltapile/checkpoint/checkpoint.hpp"

#include "small_run.hpp"

namespace voltapile {
namespace {

namespace fs = std::filesystem;
using testing::Folder;
using testing::run_as_threads;
using testing::RunOutcome;

constexpr int64_t kPictures = 512, kSide = 8, kBatch = 8, kSaveEvery = 4;

constexpr const char* kDeck = R"(
[run]
name = "small"
threads = 1
skip_limit = 1
on_divergence = "rewind"
[model]
image = 8
channels = 1
patch = 4
dim = 24
depth = 4
heads = 4
mlp = 40
classes = 10
[batch]
global = 8
micro = 2
[precision]
type = "f16"
loss_scale = 1024
[optimizer]
lr = 2e-3
schedule = "constant"
[data]
format = "idx"
mean = [0.0]
std = [1e-5]
[checkpoint]
every_steps = 4
)";

struct Pictures {
  std::vector<uint8_t> grey = std::vector<uint8_t>(kPictures, 0);  // of all of a picture's pixels
  std::vector<uint8_t> labels = std::vector<uint8_t>(kPictures, 0);
};

void put_big_endian(std::ofstream& out, std::initializer_list<uint32_t> words) {
  for (const uint32_t word : words)
    for (const int shift : {24, 16, 8, 0}) out.put(static_cast<char>(word >> shift));
}

fs::path write(const Pictures& pictures, const fs::path& folder) {
  fs::create_directories(folder);
  fs::path images = folder / "images-idx3-ubyte";
  std::ofstream out(images, std::ios::binary);
  put_big_endian(out, {0x803, kPictures, kSide, kSide});
  for (const uint8_t grey : pictures.grey)
    for (int i = 0; i < kSide * kSide; ++i) out.put(static_cast<char>(grey));
  std::ofstream labels(folder / "labels-idx1-ubyte", std::ios::binary);
  put_big_endian(labels, {0x801, kPictures});
  for (const uint8_t label : pictures.labels) labels.put(static_cast<char>(label));
  return images;
}

// Index of the run's picture `sample`, within the first epoch.
size_t picture(int64_t sample, uint64_t seed) {
  return permuted(static_cast<uint64_t>(sample), kPictures, seed, 0);
}

// The step, from 1, that shows this picture in a seed's order.
int64_t step_of(size_t wanted, uint64_t seed) {
  int64_t sample = 0;
  while (picture(sample, seed) != wanted) ++sample;
  return sample / kBatch + 1;
}

// A seed, and the picture of its first order, that come up in step `first`, and in the next seed's
// order only after step `end`.
struct Poison {
  uint64_t seed;
  size_t picture;
};
Poison find_poison(int64_t first, int64_t end) {
  for (uint64_t seed = 1;; ++seed)
    for (int64_t sample = (first - 1) * kBatch; sample < first * kBatch; ++sample)
      if (const size_t found = picture(sample, seed); step_of(found, seed + 1) > end)
        return {seed, found};
}

std::vector<std::string> changes_for(const fs::path& images, uint64_t seed, int64_t steps,
                                     std::vector<std::string> more = {}) {
  more.push_back(format("data.train=\"{}\"", images.string()));
  more.push_back(format("run.seed={}", seed));
  more.push_back(format("run.steps={}", steps));
  return more;
}

std::vector<double> losses_in(const fs::path& folder) {
  std::vector<double> losses;
  for (const TrainRecord& record : read_metrics(folder / "small").train) {
    losses.push_back(record.loss);
    EXPECT_EQ(record.step, static_cast<int64_t>(losses.size()));
  }
  return losses;
}

class Rewind : public ::testing::Test {
 protected:
  Rewind() {
    for (size_t i = 0; i < kPictures; ++i) clean_.labels[i] = static_cast<uint8_t>(i % 10);
  }

  // What a run shows that goes back from step `first` to `target`, as pictures for a run with the
  // seed's own order throughout.
  Pictures unwound(const Pictures& pictures, uint64_t seed, int64_t target, int64_t steps) const {
    Pictures shown = pictures;
    for (int64_t sample = 0; sample < steps * kBatch; ++sample) {
      const size_t to = picture(sample, seed),
                   from = picture(sample, sample < target * kBatch ? seed : seed + 1);
      shown.grey[to] = pictures.grey[from];
      shown.labels[to] = pictures.labels[from];
    }
    return shown;
  }

  Folder folder_;
  Pictures clean_;
};

constexpr int64_t kSteps = 20;

TEST_F(Rewind, GoesBackAndOnInTheOrderOfTheNextSeedOnEveryLayout) {
  const int64_t bad = 11, target = 8;
  const Poison poison = find_poison(bad, kSteps);
  Pictures pictures = clean_;
  pictures.grey[poison.picture] = 255;
  const fs::path images = write(pictures, folder_.path() / "poisoned");
  const fs::path reference =
      write(unwound(pictures, poison.seed, target, kSteps), folder_.path() / "reference");
  run_as_threads(kDeck, changes_for(reference, poison.seed, kSteps), folder_.path() / "smooth");
  const std::vector<double> expected = losses_in(folder_.path() / "smooth");
  ASSERT_EQ(expected.size(), static_cast<size_t>(kSteps));
  const std::vector<std::vector<std::string>> layouts = {
      {},
      {"parallel.pipeline=2"},
      {"parallel.pipeline=4"},
      {"parallel.pipeline=2", "parallel.chunks=2", "memory.checkpoint_every=1"}};
  for (size_t i = 0; i < layouts.size(); ++i) {
    const fs::path runs = folder_.path() / format("layout_{}", i);
    const RunOutcome outcome =
        run_as_threads(kDeck, changes_for(images, poison.seed, kSteps, layouts[i]), runs);
    EXPECT_EQ(outcome.summary.rewinds, 1);
    EXPECT_EQ(losses_in(runs), expected) << "layout " << i;
    const std::vector<RewindRecord> rewinds = read_metrics(runs / "small").rewinds;
    ASSERT_EQ(rewinds.size(), 1u);
    EXPECT_EQ(rewinds[0].step, target);
    EXPECT_EQ(rewinds[0].from_step, bad);
    EXPECT_NE(rewinds[0].cause.find("all weights are finite"), std::string::npos);
    EXPECT_EQ(read_run_state(runs / "small" / "checkpoints" / "latest").rewinds, 1);
  }
}

// No step of a checkpoint of step 8 is known to be good when step 9 is the first bad one.
TEST_F(Rewind, PassesOverACheckpointWhoseNextStepWasBad) {
  const Poison poison = find_poison(9, kSteps);
  Pictures pictures = clean_;
  pictures.grey[poison.picture] = 255;
  const fs::path images = write(pictures, folder_.path() / "poisoned");
  run_as_threads(kDeck, changes_for(images, poison.seed, kSteps), folder_.path());
  const std::vector<RewindRecord> rewinds = read_metrics(folder_.path() / "small").rewinds;
  ASSERT_EQ(rewinds.size(), 1u);
  EXPECT_EQ(rewinds[0].step, 4);
}

TEST_F(Rewind, StartsAgainWhereNothingWasSavedYet) {
  const Poison poison = find_poison(3, kSteps);
  Pictures pictures = clean_;
  pictures.grey[poison.picture] = 255;
  const fs::path images = write(pictures, folder_.path() / "poisoned");
  const fs::path reference =
      write(unwound(pictures, poison.seed, 0, kSteps), folder_.path() / "reference");
  run_as_threads(kDeck, changes_for(reference, poison.seed, kSteps), folder_.path() / "smooth");
  // Killed before the first checkpoint, it still knows that it went back.
  const std::vector<std::string> cut = {"checkpoint.every_steps=0", "checkpoint.at_end=false"};
  run_as_threads(kDeck, changes_for(images, poison.seed, 3, cut), folder_.path());
  const RunOutcome rest =
      run_as_threads(kDeck, changes_for(images, poison.seed, kSteps), folder_.path());
  EXPECT_EQ(rest.summary.rewinds, 1);
  EXPECT_EQ(rest.records.size(), static_cast<size_t>(kSteps));
  EXPECT_EQ(losses_in(folder_.path()), losses_in(folder_.path() / "smooth"));
}

TEST_F(Rewind, ResumesExactlyFromACheckpointBeforeAndAfterIt) {
  const Poison poison = find_poison(11, kSteps);
  Pictures pictures = clean_;
  pictures.grey[poison.picture] = 255;
  const fs::path images = write(pictures, folder_.path() / "poisoned");
  run_as_threads(kDeck, changes_for(images, poison.seed, kSteps), folder_.path() / "whole");
  for (const char* saved : {"true", "false"}) {  // step 11 of the new course, or still step 8
    const fs::path runs = folder_.path() / saved;
    const std::vector<std::string> cut = {format("checkpoint.at_end={}", saved)};
    run_as_threads(kDeck, changes_for(images, poison.seed, 11, cut), runs);
    const RunOutcome rest = run_as_threads(kDeck, changes_for(images, poison.seed, kSteps), runs);
    EXPECT_EQ(rest.summary.rewinds, 1) << saved;
    EXPECT_EQ(rest.records.size(), saved == std::string("true") ? 9u : 12u);
    EXPECT_EQ(losses_in(runs), losses_in(folder_.path() / "whole")) << saved;
  }
}

TEST_F(Rewind, StopsAfterTheLimit) {
  Pictures pictures = clean_;
  for (size_t i = 0; i < kPictures; i += 8) pictures.grey[i] = 255;
  const fs::path images = write(pictures, folder_.path() / "poisoned");
  try {
    run_as_threads(kDeck, changes_for(images, 1, kSteps, {"run.rewind_limit=2"}), folder_.path());
    FAIL() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::failure);
    const std::string text = error.what();
    EXPECT_NE(text.find("the run has diverged: 1 steps in a row"), std::string::npos) << text;
    EXPECT_NE(text.find("after 2 rewinds (run.rewind_limit)"), std::string::npos) << text;
  }
}

TEST_F(Rewind, StopsAtOnceWhereTheDeckSaysSo) {
  Pictures pictures = clean_;
  pictures.grey[picture(8, 1)] = pictures.grey[picture(16, 1)] = 255;  // steps 2 and 3
  const fs::path images = write(pictures, folder_.path() / "poisoned");
  try {
    run_as_threads(kDeck,
                   changes_for(images, 1, kSteps, {"run.on_divergence=stop", "run.skip_limit=2"}),
                   folder_.path());
    FAIL() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::failure);
    const std::string text = error.what();
    EXPECT_NE(text.find("2 steps in a row"), std::string::npos) << text;
    EXPECT_NE(text.find("first in pos_embed"), std::string::npos) << text;
    EXPECT_NE(text.find("all weights are finite"), std::string::npos) << text;
  }
  EXPECT_EQ(read_metrics(folder_.path() / "small").train.size(), 2u);
}

TEST_F(Rewind, GoesBackFromALossThatJumps) {
  const int64_t bad = 47, target = 44, steps = 54;
  const Poison poison = find_poison(bad, steps);
  Pictures pictures;
  pictures.labels[poison.picture] = 9;
  const fs::path images = write(pictures, folder_.path() / "poisoned");
  const fs::path reference =
      write(unwound(pictures, poison.seed, target, steps), folder_.path() / "reference");
  const std::vector<std::string> rules = {"precision.type=f32", "precision.loss_scale=1",
                                          "run.spike_factor=3", "optimizer.lr=1e-2"};
  run_as_threads(kDeck, changes_for(reference, poison.seed, steps, rules),
                 folder_.path() / "smooth");
  for (const int pipeline : {1, 2}) {
    const fs::path runs = folder_.path() / format("{}", pipeline);
    std::vector<std::string> more = rules;
    more.push_back(format("parallel.pipeline={}", pipeline));
    run_as_threads(kDeck, changes_for(images, poison.seed, steps, more), runs);
    EXPECT_EQ(losses_in(runs), losses_in(folder_.path() / "smooth"));
    const std::vector<RewindRecord> rewinds = read_metrics(runs / "small").rewinds;
    ASSERT_EQ(rewinds.size(), 1u);
    EXPECT_EQ(rewinds[0].step, target);
    EXPECT_NE(rewinds[0].cause.find("the loss of step 47 is "), std::string::npos);
  }
}

}  // namespace
}  // namespace voltapile
