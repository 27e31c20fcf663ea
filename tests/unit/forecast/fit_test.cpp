// What does not fit is refused with the figures and with changes that do make it fit.
#include "voltapile/forecast/fit.hpp"

#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>

#include "voltapile/base/error.hpp"
#include "voltapile/base/host.hpp"
#include "voltapile/deck/parse.hpp"
#include "voltapile/forecast/forecast.hpp"

#include "../../support/sample_deck.hpp"

namespace voltapile {
namespace {

Deck large_deck() {
  Deck deck = test::vit_large_deck();
  deck.run.device = DeviceKind::cuda;
  deck.precision.type = DType::f16;
  deck.model.patch = {14, 14};
  deck.batch = {.global = 64, .micro = 16};
  return deck;
}

std::string refusal(const Plan& plan, const Hardware& hardware = {},
                    const std::optional<HostMemory>& here = std::nullopt) {
  try {
    require_fit(plan, hardware, here);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::does_not_fit);
    return error.what();
  }
  return "";
}

TEST(Fit, RemediesFitAndTheCheapestComesFirst) {
  Deck deck = large_deck();
  const Plan plan = make_plan(deck);
  for (double share : {0.9, 0.6, 0.35}) {
    SCOPED_TRACE(share);
    Deck limited = deck;
    limited.memory.device_limit_bytes =
        static_cast<int64_t>(share * static_cast<double>(plan.device_bytes(0)));
    const Plan tight = make_plan(limited);
    const std::vector<Remedy> list = remedies(tight, {}, std::nullopt);
    ASSERT_FALSE(list.empty());
    EXPECT_LE(list.size(), 3u);
    for (size_t i = 0; i + 1 < list.size(); ++i)
      EXPECT_LE(list[i].step_seconds, list[i + 1].step_seconds);
    const std::string text = refusal(tight);
    for (const Remedy& remedy : list) {
      EXPECT_NE(text.find(remedy.change), std::string::npos) << text;
      // Taken at its word, as a user would.
      std::vector<std::string> overrides;
      std::string rest = remedy.change;
      for (size_t at; (at = rest.find(", ")) != std::string::npos; rest = rest.substr(at + 2))
        overrides.push_back(rest.substr(0, at));
      overrides.push_back(rest);
      Deck changed = parse_deck(write_deck(limited), "again.toml", overrides);
      EXPECT_EQ(refusal(make_plan(changed)), "") << remedy.change;
    }
  }
}

// Weights that stream from the host need its memory; moments in 8 bits make the room.
TEST(Fit, TwoChangesTogetherMayBeWhatItTakes) {
  Deck deck = load_deck(std::string(VOLTAPILE_INPUT_DECKS) + "/vit32b_synthetic_4xv100.toml");
  deck.memory.device_limit_bytes = 16'000'000'000;
  const std::vector<Remedy> list = remedies(make_plan(deck), {}, std::nullopt);
  ASSERT_FALSE(list.empty());
  EXPECT_EQ(list.front().change, "memory.weights = \"host\", optimizer.moments = \"int8\"");
}

// Evaluation follows a smaller micro-batch; and of all that fit the largest is named.
TEST(Fit, AMicroBatchIsNoSmallerThanItMustBe) {
  const std::string file = std::string(VOLTAPILE_INPUT_DECKS) + "/vit_tiny_synthetic.toml";
  const auto remedies_at = [&](const std::string& limit, const std::string& key = "run.seed=1") {
    return remedies(make_plan(load_deck(file, {"memory.device_limit=" + limit, key})), {},
                    std::nullopt);
  };
  const std::vector<Remedy> half = remedies_at("700 MB");
  ASSERT_FALSE(half.empty());
  EXPECT_EQ(half.front().change, "batch.micro = 16");
  for (size_t i = 1; i < half.size(); ++i) EXPECT_FALSE(half[i].change.starts_with("batch.micro"));
  const std::vector<Remedy> least = remedies_at("150 MB");
  ASSERT_FALSE(least.empty());
  EXPECT_EQ(least.front().change, "batch.micro = 1");
  const std::vector<Remedy> own = remedies_at("700 MB", "eval.batch=32");
  ASSERT_FALSE(own.empty());
  EXPECT_EQ(own.front().change, "batch.micro = 16, eval.batch = 16");
}

TEST(Fit, ALargeEvaluationIsCutToWhatTrainingTakes) {
  Deck deck = load_deck(std::string(VOLTAPILE_INPUT_DECKS) + "/vit_tiny_synthetic.toml",
                        {"batch.micro=4", "eval.batch=256", "memory.device_limit=1 GB"});
  EXPECT_EQ(remedies(make_plan(deck), {}, std::nullopt).front().change, "eval.batch = 4");
}

TEST(Fit, NoRemedyIsNamedWhereThereIsNone) {
  Deck deck = large_deck();
  deck.memory.device_limit_bytes = 1'000'000;
  deck.memory.nvme_dir = "";
  EXPECT_NE(refusal(make_plan(deck)).find("No change of up to three keys"), std::string::npos);
}

TEST(Fit, CountsWhatTheDriverHolds) {
  Deck deck = large_deck();
  const size_t bytes = make_plan(deck).device_bytes(0);
  deck.memory.device_limit_bytes = static_cast<int64_t>(bytes + 100);
  const Plan plan = make_plan(deck);
  EXPECT_EQ(refusal(plan), "");
  Hardware hardware;
  hardware.overhead_bytes = 1000;
  EXPECT_NE(refusal(plan, hardware).find("memory.device_limit"), std::string::npos);
}

// Blocks of 2 MiB, page tables of what is pinned and recorded graphs are the driver's, too; they
// are counted where its own memory is known.
TEST(Fit, CountsWhatTheDriverTakesForBuffers) {
  Deck deck = large_deck();
  Hardware hardware;
  hardware.overhead_bytes = 5;
  deck.run.device = DeviceKind::cpu;
  EXPECT_EQ(driver_bytes(make_plan(deck), 0), 0u);
  deck.run.device = DeviceKind::cuda;
  const Plan plan = make_plan(deck);
  const size_t taken = driver_bytes(plan, 0);
  EXPECT_GT(taken, size_t{12'000'000});
  EXPECT_LT(taken, size_t{12'000'000} + plan.train.buffers[0].pools.size() * (2 << 20));
  EXPECT_EQ(bytes_in_use(plan, hardware, 0), plan.device_bytes(0) + 5 + taken);
  EXPECT_EQ(bytes_in_use(plan, {}, 0), plan.device_bytes(0));
  deck.memory.optimizer = Home::host;
  deck.memory.weights = Home::host;
  const Plan pinned = make_plan(deck);
  const size_t weights = pinned.train.buffers[0].bytes(Value::host_weights);
  ASSERT_GT(weights, 512u);
  EXPECT_GE(driver_bytes(pinned, 0), size_t{12'000'000} + weights / 512);
}

// The deck's limit overrides what the machine says it has.
TEST(Fit, ComparesWithTheMemoryThereIs) {
  Deck deck = large_deck();
  deck.memory.optimizer = Home::host;
  const size_t host = make_plan(deck).bytes_at(Home::host, 0);
  EXPECT_EQ(refusal(make_plan(deck), {}, HostMemory{host + 1, 1}), "");
  const std::string text = refusal(make_plan(deck), {}, HostMemory{host - 1, 1});
  EXPECT_NE(text.find("memory.host_limit overrides"), std::string::npos) << text;
  EXPECT_NE(text.find("master weights"), std::string::npos) << text;
  deck.memory.host_limit_bytes = static_cast<int64_t>(host + 1);
  EXPECT_EQ(refusal(make_plan(deck), {}, HostMemory{host - 1, 1}), "");
}

// Where CPUs train, the device's memory is the host's.
TEST(Fit, CountsACpusDeviceMemoryWithTheHosts) {
  Deck deck = large_deck();
  deck.run.device = DeviceKind::cpu;
  const Plan plan = make_plan(deck);
  const size_t all = plan.device_bytes(0) + plan.bytes_at(Home::host, 0);
  EXPECT_EQ(refusal(plan, {}, HostMemory{all, 1}), "");
  const std::string text = refusal(plan, {}, HostMemory{all - 1, 1});
  EXPECT_NE(text.find("saved activations"), std::string::npos) << text;
}

TEST(Fit, ADiskIsNamedWhereTheDeckNamesNone) {
  Deck deck = test::vit_large_deck();
  deck.run.device = DeviceKind::cpu;
  deck.batch = {.global = 2, .micro = 1};
  deck.parallel.chunks = 8;
  deck.parallel.schedule = "breadth_first";
  deck.memory.recompute = Recompute::layers;
  deck.memory.checkpoint_every.reset();
  deck.memory.nvme_dir = "";
  const Plan plan = make_plan(deck);
  const HostMemory less{(plan.device_bytes(0) + plan.bytes_at(Home::host, 0)) * 6 / 10, 1};
  const std::string text = refusal(plan, {}, less);
  EXPECT_NE(text.find("memory.optimizer = \"nvme\", memory.nvme_dir = \"/path"), std::string::npos)
      << text;
}

TEST(Machine, HasMemory) {
  EXPECT_GT(available_memory(), size_t{50} << 20);
  EXPECT_LT(available_memory(), size_t{1} << 50);
}

TEST(Forecast, AStepTakesWhatItsWorkTakes) {
  Deck deck = large_deck();
  const Hardware hardware;
  const Plan plan = make_plan(deck);
  const double ideal = forecast(plan).hardware_flops_per_step / hardware.product_flops_per_second;
  EXPECT_GE(step_seconds(plan, hardware), ideal);
  EXPECT_LT(step_seconds(plan, hardware), 1.2 * ideal);
  deck.memory.recompute = Recompute::layers;
  EXPECT_GT(step_seconds(make_plan(deck), hardware), 1.2 * step_seconds(plan, hardware));
  deck = large_deck();
  deck.memory.optimizer = Home::host;
  EXPECT_GT(step_seconds(make_plan(deck), hardware), step_seconds(plan, hardware));
}

TEST(HardwareFile, GivesWhatBenchMeasuredAndNamesWhatIsWrong) {
  const auto path = std::filesystem::temp_directory_path() / "voltapile_hardware_test.toml";
  std::ofstream(path) << "[hardware]\ndevice = \"some GPU\"\noverhead_bytes = 5\n[ceilings]\n"
                         "product_flops_per_second = 2e14\n[[kernels]]\nname = \"linear\"\n";
  const Hardware hardware = load_hardware(path.string());
  EXPECT_EQ(hardware.device, "some GPU");
  EXPECT_EQ(hardware.overhead_bytes, 5u);
  EXPECT_EQ(hardware.product_flops_per_second, 2e14);
  EXPECT_EQ(hardware.disk_bytes_per_second, Hardware{}.disk_bytes_per_second);
  std::ofstream(path) << "[ceilings]\nproduct_flops_per_second = -1\n";
  try {
    load_hardware(path.string());
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find(":2:28: ceilings.product_flops_per_second = -1"),
              std::string::npos)
        << error.what();
  }
  std::filesystem::remove(path);
  EXPECT_THROW(load_hardware(path.string()), Error);
  EXPECT_NEAR(load_hardware(std::string(VOLTAPILE_INPUT_DECKS) + "/hardware/nvidia_h200.toml")
                  .product_flops_per_second,
              7.2e14, 0.1e14);
}

}  // namespace
}  // namespace voltapile
