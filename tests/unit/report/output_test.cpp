// The report's texts and files, of a run folder made by hand.
#include <filesystem>
#include <fstream>
#include <sstream>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include "voltapile/base/text_table.hpp"
#include "voltapile/base/units.hpp"
#include "voltapile/report/report.hpp"

#include "figures.hpp"
#include "measured_costs.hpp"
#include "simulated_trace.hpp"

namespace voltapile {
namespace {

namespace fs = std::filesystem;

class RunFolderOnDisk : public ::testing::Test {
 protected:
  RunFolderOnDisk() { fs::create_directories(folder_); }
  ~RunFolderOnDisk() override { fs::remove_all(root_); }

  void write_deck_and_metrics(int64_t steps, const fs::path& folder) {
    fs::create_directories(folder);
    std::ofstream(folder / "deck.toml") << write_deck(deck_);
    Metrics metrics(folder, 0);
    for (int64_t step = 1; step <= steps; ++step)
      metrics.add(TrainRecord{.step = step,
                              .loss = 3.0 / static_cast<double>(step),
                              .learning_rate = 1e-3,
                              .grad_norm = 2,
                              .samples_per_second = 100,
                              .seconds = 0.16});
    metrics.add(EvalRecord{.step = steps, .loss = 1.5, .top1 = 0.25, .top5 = 0.75, .samples = 16});
  }
  void write_trace(const fs::path& folder, int steps = 2) {
    const Plan plan = make_plan(deck_);
    const Trace trace =
        test::simulated_trace(plan, simulate(plan.train.programs, plan.train.shape,
                                             test::uneven_costs(), steps, memory_of(plan)));
    TraceWriter writer(folder / "trace.h5", folder / "none", trace.mesh, trace.deck);
    for (const RankRecord& rank : trace.ranks) writer.add(rank);
    writer.finish();
  }

  fs::path root_ = fs::temp_directory_path() / format("voltapile_report_{}", getpid());
  fs::path folder_ = root_ / "night";
  Deck deck_ = test::pipeline_deck("1f1b");
};

TEST_F(RunFolderOnDisk, TellsWhatThereIsAndWhatIsMissing) {
  write_deck_and_metrics(10, folder_);
  std::string text = describe(read_run(folder_));
  for (const char* part : {"10 of 10", "3.0000 at step 1", "0.3000 at step 10", "100 samples/s",
                           "arithmetic", "top-1 25.00 %", "none yet", "Nothing was traced"})
    EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
  write_trace(folder_);
  text = describe(read_run(folder_));
  for (const char* part : {"Recorded steps 5 to 6", "by the formula", "0 of", "receive_activation",
                           "rank 3", "Advice", "parallel.chunks"})
    EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);)
    EXPECT_LE(display_width(line), 100u + folder_.string().size()) << line;
  EXPECT_THROW(read_run(root_), Error);
}

TEST_F(RunFolderOnDisk, SaysWhatIsMissingWhereTheBubbleIsNotMeasured) {
  deck_.memory.optimizer = Home::host;
  write_deck_and_metrics(10, folder_);
  write_trace(folder_);
  EXPECT_EQ(describe(read_run(folder_)).find("not measured"), std::string::npos);
  write_trace(folder_, 1);
  const std::string text = describe(read_run(folder_));
  for (const char* part : {"- measured", "not measured:"})
    EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
}

TEST_F(RunFolderOnDisk, SpeaksOfGpusOnlyWhereTheyWereSampled) {
  const auto data_of = [&](const voltapile::Run& run) {
    const std::string html = page({run}), open = "id=\"data\">";
    const size_t begin = html.find(open) + open.size();
    return nlohmann::json::parse(html.substr(begin, html.find("</script>", begin) - begin));
  };
  write_deck_and_metrics(10, folder_);
  write_trace(folder_);
  voltapile::Run run = read_run(folder_);
  EXPECT_EQ(describe(run).find("GPU"), std::string::npos) << describe(run);
  EXPECT_TRUE(data_of(run).at("runs").at(0).at("gpus").empty());

  run.trace->epoch_samples = 1'000'000;
  for (RankRecord& rank : run.trace->ranks) {
    rank.device = "cuda, NVIDIA H200 (sm_90, 150 GB)";
    for (int64_t step = 0; step <= 10; ++step)
      rank.gpu_samples.push_back({.step = step,
                                  .time_ns = test::kBegin + step * 160'000'000,
                                  .utilisation = 0.925,
                                  .memory_utilisation = 0.414,
                                  .memory_bytes = 28e9,
                                  .power_watts = 300,
                                  .sm_clock_hz = 1980e6,
                                  .pcie_received_bytes_per_second = 55.2e9,
                                  .pcie_sent_bytes_per_second = 55.2e6,
                                  .nvlink_received_bytes = 100e9 * static_cast<double>(step),
                                  .nvlink_sent_bytes = 99e9 * static_cast<double>(step),
                                  .energy_joules = 48.0 * static_cast<double>(step)});
  }
  run.hardware = Hardware{.device = "my node", .product_flops_per_second = 1e9};
  const std::string text = describe(run);
  // 48 J a step on each of 4 ranks, for as many samples as a step has.
  const double joules = 4 * 48.0 / static_cast<double>(deck_.batch.global);
  for (const std::string& part :
       {format("{} samples/kWh", show_count(3.6e6 / joules)),
        format("{:.3g} kWh an epoch", joules / 3.6), std::string("4 GPUs draw 1200 W"),
        std::string("92.5 %"), std::string("28.0 GB"),
        std::string("17.9 % of the 1 GFLOP/s measured"),
        std::string("the datasheet's 67 TFLOP/s (H200, f32)")})
    EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);)
    EXPECT_LE(display_width(line), 100u + folder_.string().size()) << line;
  EXPECT_EQ(text.find("SMs"), std::string::npos) << "no GPU told of them";
  for (RankRecord& rank : run.trace->ranks) {
    for (GpuSample& sample : rank.gpu_samples) {
      sample.sm_activity = 0.473;
      sample.tensor_activity = 0.312;
    }
  }
  const std::string hopper = describe(run);
  for (const char* part : {"SMs", "47.3 %", "31.2 %", "that have work"})
    EXPECT_NE(hopper.find(part), std::string::npos) << part << "\n" << hopper;
  std::istringstream hopper_lines(hopper);
  for (std::string line; std::getline(hopper_lines, line);)
    EXPECT_LE(display_width(line), 100u + folder_.string().size()) << line;
  const auto gpus = data_of(run).at("runs").at(0).at("gpus");
  EXPECT_EQ(gpus.at(0).at("sms").at(3), 0.473);
  ASSERT_EQ(gpus.size(), 4u);
  EXPECT_EQ(gpus.at(0).at("watts").at(3), 300);
  EXPECT_TRUE(gpus.at(0).at("celsius").at(3).is_null());
}

TEST_F(RunFolderOnDisk, ComparesTwoRuns) {
  write_deck_and_metrics(10, folder_);
  write_trace(folder_);
  write_deck_and_metrics(5, root_ / "day");
  write_trace(root_ / "day");
  const std::string text = compare(read_run(folder_), read_run(root_ / "day"));
  for (const char* part : {"night", "day", "0.3000", "0.6000", "+100.0 %", "backward"})
    EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
}

TEST_F(RunFolderOnDisk, PerfettoFileKeepsTheTraceEventFormat) {
  write_deck_and_metrics(10, folder_);
  write_trace(folder_);
  const auto run = read_run(folder_);
  write_perfetto(*run.trace, root_ / "p.json");
  std::ifstream file(root_ / "p.json");
  const auto json = nlohmann::json::parse(file);
  std::map<std::string, int> phases;
  std::map<int64_t, double> sent;
  std::map<std::tuple<int, int, int64_t>, int> span_ends;  // (rank, lane, tenths of microseconds)
  const auto end_of = [](const nlohmann::json& event, double time) {
    return std::tuple(event.at("pid").get<int>(), event.at("tid").get<int>(),
                      std::llround(time * 10));
  };
  for (const auto& event : json.at("traceEvents")) {
    const std::string phase = event.at("ph");
    ++phases[phase];
    EXPECT_TRUE(event.at("pid").is_number_integer());
    if (phase == "M") {
      EXPECT_TRUE(event.at("args").is_object());
      continue;
    }
    EXPECT_GE(event.at("ts").get<double>(), 0);
    if (phase == "X") {
      EXPECT_GE(event.at("dur").get<double>(), 0);
      EXPECT_TRUE(event.at("args").at("step").is_number_integer());
      ++span_ends[end_of(event, event.at("ts").get<double>() + event.at("dur").get<double>())];
    }
    if (phase == "s") sent[event.at("id")] = event.at("ts");
    if (phase == "f") {
      EXPECT_GE(event.at("ts").get<double>(), sent.at(event.at("id"))) << event;
      EXPECT_TRUE(span_ends.contains(end_of(event, event.at("ts")))) << event;
    }
  }
  size_t events = 0;
  for (const RankRecord& rank : run.trace->ranks) events += rank.events.size();
  EXPECT_EQ(phases["X"], static_cast<int>(events));
  EXPECT_EQ(phases["s"], run.analysis->transfers);
  EXPECT_EQ(phases["f"], run.analysis->transfers);
  EXPECT_EQ(phases["C"], 8);
}

TEST_F(RunFolderOnDisk, PageStandsAloneAndNoNameCanBreakIt) {
  const fs::path odd = root_ / "a<b></script>&\"c";
  write_deck_and_metrics(10, odd);
  write_trace(odd);
  const std::string html = page({read_run(odd)});
  for (const char* part : {"http://", "https://", "src=", "@import", "url("}) {
    size_t count = 0;
    for (size_t at = html.find(part); at != std::string::npos; at = html.find(part, at + 1))
      ++count;
    // The SVG namespace is a name, not an address that is opened.
    EXPECT_EQ(count, std::string_view(part) == "http://" ? 1u : 0u) << part;
  }
  size_t ends = 0;
  for (size_t at = html.find("</script>"); at != std::string::npos;
       at = html.find("</script>", at + 1))
    ++ends;
  EXPECT_EQ(ends, 2u);
  const std::string open = "id=\"data\">";
  const size_t begin = html.find(open) + open.size();
  const auto data =
      nlohmann::json::parse(html.substr(begin, html.find("</script>", begin) - begin));
  const auto& run = data.at("runs").at(0);
  EXPECT_EQ(run.at("metrics").at("step").size(), 10u);
  EXPECT_EQ(run.at("trace").at("ranks").size(), 4u);
  EXPECT_EQ(run.at("heat").at("layers").size(), 10u);
  EXPECT_LT(html.size(), 300'000u);
}

TEST_F(RunFolderOnDisk, PageOfEightRanksAndFiveStepsIsUnderThreeMegabytes) {
  deck_ = test::pipeline_deck("breadth_first");
  deck_.model.depth = 40;
  deck_.parallel.pipeline = 8;
  deck_.parallel.chunks = 5;
  deck_.batch = {.global = 64, .micro = 2};
  write_deck_and_metrics(5000, folder_);
  write_trace(folder_, 5);
  EXPECT_LT(page({read_run(folder_)}).size(), 3'000'000u);
}

TEST_F(RunFolderOnDisk, PageLeavesOutStepsThatItCannotHoldAndSaysSo) {
  write_deck_and_metrics(10, folder_);
  write_trace(folder_, 500);
  const std::string html = page({read_run(folder_)});
  EXPECT_LT(html.size(), 3'000'000u);
  EXPECT_NE(html.find("\"last_of\":504"), std::string::npos);
  EXPECT_EQ(html.find("\"last_step\":504"), std::string::npos);
}

TEST_F(RunFolderOnDisk, FollowEndsWithTheRun) {
  write_deck_and_metrics(10, folder_);
  std::ostringstream out;
  follow(folder_, out, false, [] { return false; });
  EXPECT_NE(out.str().find("10 of 10"), std::string::npos);
  EXPECT_EQ(out.str().find('\x1b'), std::string::npos);
  EXPECT_THROW(follow(root_ / "nowhere", out, false, [] { return false; }), Error);
}

TEST_F(RunFolderOnDisk, FollowShowsWhatIsAddedAndStopsWhenItIsAsked) {
  write_deck_and_metrics(4, folder_);
  std::ostringstream out;
  int looks = 0;
  follow(folder_, out, true, [&] {
    if (++looks == 1) write_deck_and_metrics(6, folder_);
    return out.str().find("6 of 10") != std::string::npos || looks > 100;
  });
  EXPECT_NE(out.str().find("4 of 10"), std::string::npos);
  EXPECT_NE(out.str().find("6 of 10"), std::string::npos);
  EXPECT_NE(out.str().find("\x1b[2J"), std::string::npos);
}

TEST(Spark, DrawsMeansAndLeavesGaps) {
  EXPECT_EQ(spark({0, 1}, 10), "▁█");
  EXPECT_EQ(spark({0, 0, 7, 7}, 2), "▁█");
  EXPECT_EQ(spark({0, std::nan(""), 1}, 10), "▁ █");
  EXPECT_EQ(spark({}, 10), "");
}

TEST(ModelFlops, AreThoseOfAStepWhateverTheMesh) {
  Deck deck = test::sample_deck();
  const Plan one = make_plan(deck);
  // Blocks' matrices, attention, patches without a pixel gradient, head.
  const double blocks = 4 * (4 * 32 * 32 + 2 * 32 * 64), tokens = 16;
  const double sample =
      6 * blocks * tokens + 4 * 12 * tokens * tokens * 32 + 4 * 48 * 32 * tokens + 6 * 32 * 10;
  EXPECT_NEAR(model_flops(one) / (8 * sample), 1, 1e-9);
  deck.parallel.pipeline = deck.parallel.data = deck.parallel.tensor = 2;
  EXPECT_NEAR(model_flops(make_plan(deck)) / model_flops(one), 1, 1e-12);
}

TEST(Throughput, IsTheMedianOfTheLastSteps) {
  std::vector<TrainRecord> train;
  for (int i = 1; i <= 101; ++i)
    train.push_back({.step = i, .samples_per_second = i < 52 ? 1.0 : 1000.0 + i, .seconds = 2});
  const Throughput t = throughput(train);
  EXPECT_EQ(t.steps, 50u);
  EXPECT_EQ(t.samples_per_second, 1077);
  EXPECT_EQ(throughput({}).steps, 0u);
}

}  // namespace
}  // namespace voltapile
