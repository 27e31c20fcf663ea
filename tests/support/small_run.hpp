// For tests: a small training run from a deck text, on ranks as threads, in a folder of its own.
#pragma once
#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <unistd.h>

#include "voltapile/comm/communicator.hpp"
#include "voltapile/deck/parse.hpp"
#include "voltapile/plan/plan.hpp"
#include "voltapile/train/trainer.hpp"

#include "gpu.hpp"

namespace voltapile::testing {

// A temporary folder, removed at the end.
class Folder {
 public:
  Folder() {
    static std::atomic<int> number{0};
    path_ = std::filesystem::temp_directory_path() /
            format("voltapile_test_{}_{}", getpid(), number.fetch_add(1));
    std::filesystem::create_directories(path_);
  }
  ~Folder() {
    std::error_code error;
    std::filesystem::remove_all(path_, error);
  }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

inline bool full_tests() {
  const char* value = std::getenv("VOLTAPILE_FULL");
  return value != nullptr && std::string(value) == "1";
}

// The same tests run on another device where the environment names one; there they are skipped
// where that device is missing.
inline std::string test_device() {
  const char* device = std::getenv("VOLTAPILE_TEST_DEVICE");
  return device == nullptr ? "" : device;
}

class TestDevice : public ::testing::Environment {
 public:
  void SetUp() override {
    if (test_device() != "cuda") return;
    if (const std::string why = why_no_gpu(); !why.empty()) GTEST_SKIP() << why;
  }
};
inline ::testing::Environment* const kTestDevice =
    ::testing::AddGlobalTestEnvironment(new TestDevice);

inline constexpr const char* kSmallDeck = R"(
[run]
name = "small"
steps = 5
seed = 11
threads = 1
[model]
image = 8
channels = 2
patch = 4
dim = 24
depth = 8
heads = 4
mlp = 40
classes = 10
[batch]
global = 8
micro = 2
[optimizer]
lr = 2e-3
warmup_steps = 2
[data]
format = "synthetic"
synthetic_train = 64
synthetic_test = 21
mean = [0.5, 0.5]
std = [0.5, 0.5]
[checkpoint]
at_end = false
)";

struct RunOutcome {
  std::vector<TrainRecord> records;
  std::vector<double> losses;
  TrainSummary summary;
};

// Trains on ranks as threads and gives what rank 0 saw. Of `more`, on_step is called after that.
inline RunOutcome run_as_threads(const std::string& text, std::vector<std::string> overrides,
                                 const std::filesystem::path& folder, bool fresh = false,
                                 const TrainOptions& more = {}) {
  overrides.push_back(format("run.dir=\"{}\"", folder.string()));
  if (!test_device().empty()) overrides.push_back(format("run.device=\"{}\"", test_device()));
  const Deck deck = parse_deck(text, "test.toml", overrides);
  RunOutcome outcome;
  spawn_ranks(ranks_of(deck), [&](std::unique_ptr<Communicator> world) {
    const bool leads = world->rank() == 0;
    TrainOptions options{.fresh = fresh, .quiet = true, .before_write = more.before_write};
    if (leads) {
      options.on_step = [&](const TrainRecord& record) {
        outcome.records.push_back(record);
        outcome.losses.push_back(record.loss);
        if (more.on_step) more.on_step(record);
      };
    }
    const TrainSummary summary = train([&] { return deck; }, std::move(world), options);
    if (leads) outcome.summary = summary;
  });
  return outcome;
}

}  // namespace voltapile::testing
