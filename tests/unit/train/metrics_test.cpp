// metrics.jsonl and metrics.h5 through real files.
#include "voltapile/train/metrics.hpp"

#include <cmath>
#include <fstream>
#include <limits>
#include <sstream>
#include <vector>

#include <gtest/gtest.h>
#include <stdlib.h>

#include "voltapile/base/error.hpp"
#include "voltapile/h5/h5.hpp"

namespace voltapile {
namespace {

namespace fs = std::filesystem;

class MetricsFiles : public ::testing::Test {
 protected:
  MetricsFiles() {
    std::string pattern = (fs::temp_directory_path() / "vp_metrics_XXXXXX").string();
    folder_ = mkdtemp(pattern.data());
  }
  ~MetricsFiles() override { fs::remove_all(folder_); }

  std::vector<std::string> lines() const {
    std::ifstream in(folder_ / "metrics.jsonl");
    std::vector<std::string> all;
    for (std::string line; std::getline(in, line);) all.push_back(line);
    return all;
  }
  std::string text() const {
    std::ifstream in(folder_ / "metrics.jsonl", std::ios::binary);
    std::stringstream all;
    all << in.rdbuf();
    return all.str();
  }
  void append(const std::string& text) const {
    std::ofstream(folder_ / "metrics.jsonl", std::ios::app | std::ios::binary) << text;
  }
  std::vector<double> published(const char* group, const char* name) const {
    const h5::File file = h5::File::open(folder_ / "metrics.h5");
    const h5::Group parent = file.open_group(group);
    const h5::Dataset dataset = parent.open_dataset(name);
    std::vector<double> values(static_cast<size_t>(dataset.shape()[0]));
    dataset.read(values.data(), DType::f64);
    return values;
  }
  // Steps 1 to n, with an evaluation at each even one.
  void train(int64_t from, int64_t to, int64_t resume_step) const {
    Metrics metrics(folder_, resume_step);
    for (int64_t step = from; step <= to; ++step) {
      metrics.add(TrainRecord{.step = step, .loss = 1.0 / static_cast<double>(step)});
      if (step % 2 == 0) metrics.add(EvalRecord{.step = step, .loss = 0.5, .samples = 10});
    }
  }
  fs::path folder_;
};

TEST_F(MetricsFiles, EachRecordIsALineAtOnce) {
  Metrics metrics(folder_, 0);
  metrics.add(TrainRecord{.step = 1,
                          .loss = 2.302585092994046,
                          .learning_rate = 6e-5,
                          .grad_norm = 0.1,
                          .loss_scale = 65536,
                          .samples_per_second = 12.5,
                          .seconds = 2.56,
                          .skipped = true});
  metrics.add(EvalRecord{.step = 1, .loss = 1.5, .top1 = 0.25, .top5 = 0.75, .samples = 10000});
  EXPECT_EQ(lines(),
            (std::vector<std::string>{
                R"({"kind":"train","step":1,"loss":2.302585092994046,"learning_rate":6e-05,)"
                R"("grad_norm":0.1,"loss_scale":65536.0,"samples_per_second":12.5,"seconds":2.56,)"
                R"("skipped":true})",
                R"({"kind":"eval","step":1,"loss":1.5,"top1":0.25,"top5":0.75,"samples":10000})"}));
}

TEST_F(MetricsFiles, WhatIsNotFiniteIsNullInLinesAndNaNInDatasets) {
  {
    Metrics metrics(folder_, 0);
    metrics.add(TrainRecord{.step = 1, .loss = NAN, .grad_norm = INFINITY});
  }
  EXPECT_NE(lines()[0].find(R"("loss":null)"), std::string::npos) << lines()[0];
  EXPECT_NE(lines()[0].find(R"("grad_norm":null)"), std::string::npos) << lines()[0];
  Metrics again(folder_, 1);
  EXPECT_TRUE(std::isnan(published("train", "loss").at(0)));
  EXPECT_TRUE(std::isnan(published("train", "grad_norm").at(0)));
}

TEST_F(MetricsFiles, DatasetsAppearAtOnceAndFollowOnPublish) {
  Metrics metrics(folder_, 0);
  EXPECT_EQ(published("train", "step"), std::vector<double>{});
  metrics.add(TrainRecord{.step = 1, .loss = 3, .learning_rate = 0.5, .seconds = 0.25});
  metrics.add(EvalRecord{.step = 1, .loss = 2, .top1 = 0.5, .top5 = 1, .samples = 7});
  EXPECT_EQ(published("train", "step"), std::vector<double>{});  // not due yet
  metrics.publish();
  EXPECT_EQ(published("train", "step"), std::vector<double>{1});
  EXPECT_EQ(published("train", "loss"), std::vector<double>{3});
  EXPECT_EQ(published("train", "learning_rate"), std::vector<double>{0.5});
  EXPECT_EQ(published("train", "loss_scale"), std::vector<double>{1});
  EXPECT_EQ(published("train", "seconds"), std::vector<double>{0.25});
  EXPECT_EQ(published("train", "skipped"), std::vector<double>{0});
  EXPECT_EQ(published("eval", "top1"), std::vector<double>{0.5});
  EXPECT_EQ(published("eval", "top5"), std::vector<double>{1});
  EXPECT_EQ(published("eval", "samples"), std::vector<double>{7});
  const h5::File file = h5::File::open(folder_ / "metrics.h5");
  EXPECT_EQ(file.open_group("train").open_dataset("seconds").text_attribute("units"), "s");
  EXPECT_EQ(file.open_group("eval").open_dataset("top1").text_attribute("units"), "fraction");
  EXPECT_FALSE(fs::exists(folder_ / "metrics.h5.partial"));
}

TEST_F(MetricsFiles, TheEndPublishes) {
  train(1, 3, 0);
  EXPECT_EQ(published("train", "step"), (std::vector<double>{1, 2, 3}));
  EXPECT_EQ(published("eval", "step"), std::vector<double>{2});
}

TEST_F(MetricsFiles, ContinuingCutsStepsBeyondTheCheckpoint) {
  train(1, 6, 0);
  train(4, 4, 3);  // the checkpoint was at step 3
  EXPECT_EQ(published("train", "step"), (std::vector<double>{1, 2, 3, 4}));
  EXPECT_EQ(published("eval", "step"), (std::vector<double>{2, 4}));
  EXPECT_EQ(lines().size(), 6u);
  EXPECT_EQ(published("train", "loss"), (std::vector<double>{1, 0.5, 1.0 / 3, 0.25}));
}

// A reader that follows the file keeps it open: it must not be replaced by another.
TEST_F(MetricsFiles, CuttingKeepsTheFileThatAFollowerHasOpen) {
  train(1, 6, 0);
  std::ifstream follower(folder_ / "metrics.jsonl");
  std::string line;
  for (int i = 0; i < 4; ++i) std::getline(follower, line);  // steps 1, 2, evaluation of 2, 3
  train(4, 4, 3);
  std::getline(follower, line);
  EXPECT_NE(line.find(R"("step":4)"), std::string::npos) << line;
}

TEST_F(MetricsFiles, ATornLastLineIsCutAnywhere) {
  train(1, 2, 0);
  const std::string whole = text();
  const std::string next = R"({"kind":"train","step":3,"loss":1.0,"learning_rate":0.0})";
  for (size_t bytes = 1; bytes <= next.size(); ++bytes) {
    append(next.substr(0, bytes));
    Metrics metrics(folder_, 100);
    ASSERT_EQ(text(), whole) << bytes;
  }
}

TEST_F(MetricsFiles, AnUnreadableLineIsRemovedAndTheRestKept) {
  train(1, 1, 0);
  append(std::string("\0\0\0\n", 4) + "{\"kind\":\"train\"}\n[1]\n\n");
  append("{\"kind\":\"eval\",\"step\":1,\"loss\":1,\"top1\":1,\"top5\":1,\"samples\":4}\n");
  { Metrics metrics(folder_, 1); }
  EXPECT_EQ(lines().size(), 2u);
  EXPECT_EQ(published("eval", "samples"), std::vector<double>{4});
  EXPECT_FALSE(fs::exists(folder_ / "metrics.jsonl.partial"));
}

TEST_F(MetricsFiles, StartingAgainFromTheBeginningLeavesNoOldSteps) {
  train(1, 4, 0);
  train(1, 2, 0);
  EXPECT_EQ(published("train", "step"), (std::vector<double>{1, 2}));
  EXPECT_EQ(published("eval", "step"), std::vector<double>{2});
}

TEST_F(MetricsFiles, AFileThatCannotBeWrittenIsAnError) {
  try {
    Metrics metrics(folder_ / "not_there", 0);
    FAIL() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::failure);
    EXPECT_NE(std::string(error.what()).find("metrics."), std::string::npos);
  }
  fs::create_directory(folder_ / "metrics.jsonl");
  EXPECT_THROW(Metrics(folder_, 0), Error);
}

TEST_F(MetricsFiles, AReturnIsALineThatStaysWithTheStepsBeforeIt) {
  {
    Metrics metrics(folder_, 0);
    for (const int64_t step : {1, 2}) metrics.add(TrainRecord{.step = step});
    metrics.add(RewindRecord{.step = 2, .from_step = 5, .rewinds = 1, .cause = "a \"cause\""});
    metrics.add(TrainRecord{.step = 3});
  }
  EXPECT_EQ(lines()[2],
            R"({"kind":"rewind","step":2,"from_step":5,"rewinds":1,"cause":"a \"cause\""})");
  { Metrics metrics(folder_, 2); }
  EXPECT_EQ(lines().size(), 3u);
  EXPECT_EQ(read_metrics(folder_).rewinds.at(0).cause, "a \"cause\"");
  { Metrics metrics(folder_, 1); }
  EXPECT_EQ(lines().size(), 1u);
}

}  // namespace
}  // namespace voltapile
