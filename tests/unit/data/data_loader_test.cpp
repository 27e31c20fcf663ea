#include <atomic>
#include <chrono>
#include <cstdlib>
#include <latch>
#include <random>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>

#include <gtest/gtest.h>

#include "voltapile/base/error.hpp"
#include "voltapile/base/philox.hpp"

#include "augment.hpp"
#include "loader_support.hpp"

namespace voltapile {
namespace {

struct Sample {
  Bytes picture;
  int32_t label = -1;
  bool operator==(const Sample&) const = default;
  int64_t number() const {
    int64_t index = -1;
    std::memcpy(&index, picture.data(), sizeof index);
    return index;
  }
};

// The samples of `steps` steps as this data rank sees them, in order.
std::vector<Sample> load(const std::shared_ptr<const Source>& source, const LoaderOptions& options,
                         int64_t steps, size_t slots = 3) {
  Memory memory(options, slots);
  Loader loader(source, options, memory.ring());
  const auto picture_bytes = static_cast<size_t>(options.channels * options.height * options.width);
  std::vector<Sample> samples;
  for (int64_t step = 0; step < steps; ++step) {
    const BatchMemory& batch = loader.next();
    for (size_t i = 0; i < batch.labels.size(); ++i) {
      const auto picture = batch.pictures.subspan(i * picture_bytes, picture_bytes);
      samples.push_back({Bytes(picture.begin(), picture.end()), batch.labels[i]});
    }
    loader.release();
  }
  return samples;
}

// The same samples, put together from the steps of `data_ranks` ranks.
std::vector<Sample> load_split(const std::shared_ptr<const Source>& source, LoaderOptions options,
                               int64_t steps, int64_t data_ranks, size_t slots) {
  const int64_t share = options.samples_per_step / data_ranks;
  options.rank_samples = share;
  std::vector<Sample> all(static_cast<size_t>(steps * options.samples_per_step));
  for (int64_t rank = 0; rank < data_ranks; ++rank) {
    options.rank_offset = rank * share;
    const std::vector<Sample> part = load(source, options, steps, slots);
    for (int64_t i = 0; i < steps * share; ++i)
      all[static_cast<size_t>(i / share * options.samples_per_step + rank * share + i % share)] =
          part[static_cast<size_t>(i)];
  }
  return all;
}

TEST(Loader, SamplesDependOnNeitherRanksNorBatchNorWorkersNorRing) {
  const auto source = std::make_shared<NumberedSource>(53);
  constexpr int64_t kSamples = 240;  // four epochs and a half
  LoaderOptions options = numbered_options(kSamples);
  options.flip = true;
  options.shift = 1;
  const std::vector<Sample> expected = load(source, options, 1);
  ASSERT_EQ(expected.size(), static_cast<size_t>(kSamples));
  const bool all = std::getenv("VOLTAPILE_FULL") != nullptr;
  std::mt19937 random(3);
  for (const int64_t per_step : {1, 6, 8, 24, 120})
    for (const int64_t data_ranks : {1, 2, 3, 8})
      for (const int workers : {1, 2, 5})
        for (const size_t slots : {2, 3, 7}) {
          if (per_step % data_ranks != 0) continue;
          if (!all && random() % 4 != 0) continue;
          options.samples_per_step = per_step;
          options.workers = workers;
          EXPECT_EQ(load_split(source, options, kSamples / per_step, data_ranks, slots), expected)
              << per_step << " samples a step, " << data_ranks << " data ranks, " << workers
              << " workers, " << slots << " slots";
        }
}

TEST(Loader, ASampleIsThePureFunctionOfSeedAndIndexThatTheHeaderStates) {
  const int64_t size = 13;
  const auto source = std::make_shared<NumberedSource>(size);
  LoaderOptions options = numbered_options(60);
  options.flip = true;
  options.shift = 2;
  const std::vector<Sample> samples = load(source, options, 1);
  for (uint64_t k = 0; k < 60; ++k) {
    const auto epoch = static_cast<uint32_t>(k / size);
    Bytes picture(kPictureBytes);
    Sample expected{Bytes(kPictureBytes), -1};
    source->read(static_cast<int64_t>(permuted(k % size, size, options.seed, epoch)), picture,
                 expected.label);
    apply(draw_augmentation(options.seed, epoch, k, true, 2), 1, 2, 4, picture, expected.picture);
    EXPECT_EQ(samples[k], expected) << k;
  }
}

TEST(Loader, ContinuesAtAnySample) {
  const auto source = std::make_shared<NumberedSource>(31);
  LoaderOptions options = numbered_options(100);
  options.flip = true;
  options.shift = 1;
  const std::vector<Sample> expected = load(source, options, 1);
  for (int64_t first = 0; first < 95; ++first) {
    options.first_sample = first;
    options.samples_per_step = options.rank_samples = 5;
    const std::vector<Sample> resumed = load(source, options, 1);
    EXPECT_TRUE(std::equal(resumed.begin(), resumed.end(), expected.begin() + first)) << first;
  }
}

TEST(Loader, EveryEpochIsAPermutationOfItsOwn) {
  for (const int64_t size : {1, 2, 3, 16, 17, 100, 257}) {
    const auto source = std::make_shared<NumberedSource>(size);
    const std::vector<Sample> samples = load(source, numbered_options(size), 4);
    std::vector<std::vector<int64_t>> orders;
    for (int64_t epoch = 0; epoch < 4; ++epoch) {
      std::vector<int64_t> order;
      for (int64_t i = 0; i < size; ++i)
        order.push_back(samples[static_cast<size_t>(epoch * size + i)].number());
      const std::set<int64_t> seen(order.begin(), order.end());
      EXPECT_EQ(static_cast<int64_t>(seen.size()), size);
      EXPECT_EQ(*seen.begin(), 0);
      EXPECT_EQ(*seen.rbegin(), size - 1);
      orders.push_back(order);
    }
    if (size >= 16) {
      EXPECT_NE(orders[0], orders[1]);
      EXPECT_NE(orders[1], orders[2]);
    }
  }
}

TEST(Loader, AnotherSeedIsAnotherOrder) {
  const auto source = std::make_shared<NumberedSource>(50);
  LoaderOptions options = numbered_options(50);
  const auto one = load(source, options, 1);
  options.seed = 12;
  EXPECT_NE(load(source, options, 1), one);
}

TEST(Loader, LabelsBelongToTheirPictures) {
  const auto samples = load(std::make_shared<NumberedSource>(20), numbered_options(60), 1);
  for (const Sample& sample : samples) EXPECT_EQ(sample.label, sample.number() % 7);
}

TEST(Loader, WithoutShuffleKeepsTheFilesOrderAndPadsTheEnd) {
  const auto source = std::make_shared<NumberedSource>(10);
  LoaderOptions options = numbered_options(4);
  options.shuffle = false;
  options.end_sample = 9;
  for (const int64_t data_ranks : {1, 2, 4}) {
    const auto samples = load_split(source, options, 4, data_ranks, 2);
    for (int64_t i = 0; i < 16; ++i) {
      const Sample& sample = samples[static_cast<size_t>(i)];
      EXPECT_EQ(sample.number(), i < 9 ? i : 0);
      EXPECT_EQ(sample.label, i < 9 ? i % 7 : 0);
    }
  }
}

TEST(Loader, AugmentationNeedsNoPicturesForLabels) {
  const auto source = std::make_shared<NumberedSource>(30);
  LoaderOptions options = numbered_options(6);
  options.flip = true;
  const auto both = load(source, options, 5);
  Memory memory(options, 2, false, true);
  Loader loader(source, options, memory.ring());
  for (size_t step = 0; step < 5; ++step) {
    const BatchMemory& batch = loader.next();
    EXPECT_TRUE(batch.pictures.empty());
    for (size_t i = 0; i < 6; ++i) EXPECT_EQ(batch.labels[i], both[step * 6 + i].label);
    loader.release();
  }
}

TEST(Loader, GivesPicturesWithoutLabels) {
  const auto source = std::make_shared<NumberedSource>(30);
  const LoaderOptions options = numbered_options(6);
  const auto both = load(source, options, 1);
  Memory memory(options, 2, true, false);
  Loader loader(source, options, memory.ring());
  const BatchMemory& batch = loader.next();
  EXPECT_TRUE(batch.labels.empty());
  for (size_t i = 0; i < 6; ++i)
    EXPECT_TRUE(std::equal(both[i].picture.begin(), both[i].picture.end(),
                           batch.pictures.begin() + static_cast<int64_t>(i) * kPictureBytes));
}

TEST(Loader, ABatchStaysUntouchedUntilItIsReleased) {
  const auto source = std::make_shared<NumberedSource>(1000);
  LoaderOptions options = numbered_options(4);
  options.shuffle = false;
  options.workers = 3;
  Memory memory(options, 3);
  Loader loader(source, options, memory.ring());
  for (int64_t step = 0; step < 60; step += 3) {
    const BatchMemory* held[3];
    for (auto& batch : held) batch = &loader.next();  // the workers have nowhere left to write
    for (int64_t i = 0; i < 3; ++i)
      for (int64_t k = 0; k < 4; ++k)
        EXPECT_EQ(held[i]->labels[static_cast<size_t>(k)], ((step + i) * 4 + k) % 7);
    for (int i = 0; i < 3; ++i) loader.release();
  }
}

TEST(Loader, AnErrorComesWithItsStepAndNotBefore) {
  for (const int workers : {1, 4}) {
    const auto source = std::make_shared<NumberedSource>(100, [](int64_t index) {
      if (index >= 22) throw std::runtime_error("picture 22 is gone");
    });
    LoaderOptions options = numbered_options(4);
    options.shuffle = false;
    options.workers = workers;
    Memory memory(options, 8);
    Loader loader(source, options, memory.ring());
    for (int step = 0; step < 5; ++step) {
      EXPECT_EQ(loader.next().labels[0], step * 4 % 7);
      loader.release();
    }
    for (int attempt = 0; attempt < 2; ++attempt) {
      try {
        loader.next();
        FAIL() << "step 5 holds picture 22";
      } catch (const std::runtime_error& error) {
        EXPECT_EQ(std::string(error.what()), "picture 22 is gone");
      }
    }
  }
}

TEST(Loader, AnErrorDoesNotCutShortTheStepBeforeIt) {
  std::latch failed(1);
  const auto source = std::make_shared<NumberedSource>(10, [&failed](int64_t index) {
    if (index == 4) {
      failed.count_down();
      throw std::runtime_error("picture 4 is gone");
    }
    if (index == 3) {
      failed.wait();
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
  });
  LoaderOptions options = numbered_options(1);
  options.shuffle = false;
  options.first_sample = 3;
  options.workers = 2;
  Memory memory(options, 2);
  Loader loader(source, options, memory.ring());
  EXPECT_EQ(loader.next().labels[0], 3);
  EXPECT_THROW(loader.next(), std::runtime_error);
}

TEST(Loader, EndsWithoutHangingWhateverTheWorkersDo) {
  LoaderOptions options = numbered_options(4);
  options.workers = 3;
  for (int round = 0; round < 50; ++round) {
    Memory memory(options, 2);
    Loader loader(std::make_shared<NumberedSource>(10), options, memory.ring());
    for (int step = 0; step < round % 3; ++step) loader.next();
  }
  const auto broken =
      std::make_shared<NumberedSource>(10, [](int64_t) { throw std::runtime_error("broken"); });
  for (int round = 0; round < 50; ++round) {
    Memory memory(options, 2);
    Loader loader(broken, options, memory.ring());
    if (round % 2) { EXPECT_THROW(loader.next(), std::runtime_error); }
  }
}

TEST(Loader, ReadsAheadIntoTheWholeRing) {
  std::latch read(4 * 3);
  const auto source =
      std::make_shared<NumberedSource>(1000, [&read](int64_t) { read.count_down(); });
  const LoaderOptions options = numbered_options(4);
  Memory memory(options, 3);
  Loader loader(source, options, memory.ring());
  read.wait();  // would wait for ever if next() were needed to start the work
}

TEST(Loader, CountsTheTimeThatTheCallerWaits) {
  // The source opens a little after next() was called; it is tried again for as long as this thread
  // was held up in between, so that nothing depends on the machine's speed.
  double waited = 0;
  while (waited == 0) {
    std::atomic<bool> called{false};
    const auto source = std::make_shared<NumberedSource>(10, [&called](int64_t) {
      while (!called) std::this_thread::yield();
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    });
    const LoaderOptions options = numbered_options(1);
    Memory memory(options, 2);
    Loader loader(source, options, memory.ring());
    EXPECT_EQ(loader.waited_seconds(), 0);
    called = true;
    EXPECT_EQ(loader.next().labels[0], permuted(0, 10, options.seed, 0) % 7);
    waited = loader.waited_seconds();
  }
  EXPECT_GT(waited, 0);
}

TEST(Loader, RefusesMisuse) {
  const auto source = std::make_shared<NumberedSource>(10);
  const LoaderOptions options = numbered_options(4);
  Memory memory(options, 2);
  {
    Loader loader(source, options, memory.ring());
    EXPECT_THROW(loader.release(), Error);  // nothing given out
    loader.next();
    loader.next();
    EXPECT_THROW(loader.next(), Error);  // would wait for ever
  }
  EXPECT_THROW(Loader(source, options, Memory(options, 1).ring()), Error);
  EXPECT_THROW(Loader(source, numbered_options(5), memory.ring()), Error);
  LoaderOptions beyond = options;
  beyond.rank_offset = 1;
  EXPECT_THROW(Loader(source, beyond, memory.ring()), Error);
}

}  // namespace
}  // namespace voltapile
