// What `voltapile submit` asks a queue for.
#include "voltapile/submit/submit.hpp"

#include <algorithm>

#include <gtest/gtest.h>

#include "voltapile/base/error.hpp"

#include "../../support/sample_deck.hpp"

namespace voltapile {
namespace {

constexpr const char* kSinfo =
    "gpu|16|64|512000|gpu:v100:4(S:0-1)|3-00:00:00\n"
    "big|2|128|2048000|gpu:a100:6(S:0-1),gpu:a30:2,shard:8|infinite\n"
    "mixed|4|64|512000|gpu:4|1:30:00\n"
    "mixed|1|64|512000|gpu:v100:8|1:30:00\n"
    "cpu*|100|48+|192000|(null)|30\n";

// A deck of `ranks` ranks, on GPUs.
Plan gpu_plan(int ranks) {
  Deck deck = test::sample_deck();
  deck.run.device = DeviceKind::cuda;
  deck.run.name = "small";
  deck.parallel.data = ranks;
  deck.batch.global = ranks * deck.batch.micro;
  return make_plan(deck);
}
Plan cpu_plan(int ranks, int threads) {
  Deck deck = gpu_plan(ranks).deck;
  deck.run.device = DeviceKind::cpu;
  deck.run.threads = threads;
  return make_plan(deck);
}

Cluster slurm() { return {{Queue::slurm}, parse_sinfo(kSinfo)}; }

SubmitOptions options(const std::string& partition, const std::string& time = "1h") {
  SubmitOptions options;
  options.deck = "deck.toml";
  options.jobscripts = "/scripts";
  options.partition = partition;
  options.time = time;
  return options;
}

bool has(const Submission& submission, const std::string& word) {
  const auto& words = submission.command;
  return std::find(words.begin(), words.end(), word) != words.end();
}

std::string refusal(const Plan& plan, const SubmitOptions& options, const Cluster& cluster,
                    ExitCode code = ExitCode::bad_input) {
  try {
    return "not refused: " + make_submission(plan, options, cluster).line();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    return error.what();
  }
}

TEST(Sinfo, IsReadWithItsOddities) {
  const auto kinds = parse_sinfo(std::string("slurm_load_partitions: error\n|||||\n") + kSinfo);
  ASSERT_EQ(kinds.size(), 5u);
  EXPECT_EQ(kinds[0].partition, "gpu");
  EXPECT_EQ(kinds[0].gpus, 4);
  EXPECT_EQ(kinds[0].limit_seconds, 3 * 86400.0);
  EXPECT_EQ(kinds[0].memory_bytes, int64_t{512000} << 20);
  EXPECT_FALSE(kinds[0].is_default);
  EXPECT_EQ(kinds[1].gpus, 8);  // of two types; shards are none
  EXPECT_FALSE(kinds[1].limit_seconds.has_value());
  EXPECT_EQ(kinds[2].limit_seconds, 5400.0);
  EXPECT_EQ(kinds[4].partition, "cpu");
  EXPECT_TRUE(kinds[4].is_default);
  EXPECT_EQ(kinds[4].cpus, 48);
  EXPECT_EQ(kinds[4].gpus, 0);
  EXPECT_EQ(kinds[4].limit_seconds, 1800.0);
}

TEST(Submit, FillsNodesWithOneRankForEachGpu) {
  const Submission got = make_submission(gpu_plan(8), options("gpu"), slurm());
  for (const char* word : {"sbatch", "--partition=gpu", "--nodes=2", "--ntasks=8",
                           "--ntasks-per-node=4", "--gpus-per-node=4", "--cpus-per-task=16",
                           "--time=01:00:00", "/scripts/slurm.sbatch", "deck.toml"})
    EXPECT_TRUE(has(got, word)) << word << " is not in " << got.line();
  EXPECT_EQ(got.command.back(), "deck.toml");
}

TEST(Submit, SpreadsRanksEvenlyAndAsksForNoGpuThatNoRankUses) {
  const Submission six = make_submission(gpu_plan(6), options("gpu"), slurm());
  EXPECT_TRUE(has(six, "--nodes=2") && has(six, "--ntasks-per-node=3")) << six.line();
  EXPECT_TRUE(has(six, "--gpus-per-node=3")) << six.line();
  const Submission two = make_submission(gpu_plan(2), options("gpu"), slurm());
  EXPECT_TRUE(has(two, "--nodes=1") && has(two, "--gpus-per-node=2")) << two.line();
}

TEST(Submit, AsksForWhatNobodyKnows) {
  const std::string nothing = refusal(gpu_plan(4), options("", ""), {{Queue::slurm}, {}});
  EXPECT_NE(nothing.find("--gpus-per-node"), std::string::npos) << nothing;
  EXPECT_NE(nothing.find("--time"), std::string::npos) << nothing;
  const std::string threads = refusal(cpu_plan(4, 0), options("cpu", "10m"), slurm());
  EXPECT_NE(threads.find("--cpus-per-task"), std::string::npos) << threads;
  const std::string nodes = refusal(cpu_plan(4, 2), options(""), {{Queue::pbs}, {}});
  EXPECT_NE(nodes.find("--tasks-per-node"), std::string::npos) << nodes;
  const std::string mixed = refusal(gpu_plan(4), options("mixed"), slurm());
  EXPECT_NE(mixed.find("--gpus-per-node: nodes of mixed have 4 or 8"), std::string::npos) << mixed;
  const std::string queue = refusal(gpu_plan(4), options("gpu"), {});
  EXPECT_NE(queue.find("sbatch"), std::string::npos) << queue;
}

TEST(Submit, RefusesWhatThePartitionDoesNotHave) {
  EXPECT_NE(refusal(gpu_plan(2), options("cpu", "10m"), slurm()).find("big, gpu, mixed"),
            std::string::npos);
  EXPECT_NE(refusal(gpu_plan(2), options("gqu"), slurm()).find("big, cpu, gpu, mixed"),
            std::string::npos);
  EXPECT_NE(refusal(gpu_plan(2), options("gpu", "73h"), slurm()).find("gpu allows"),
            std::string::npos);
  EXPECT_NE(refusal(gpu_plan(2), options("gpu", "1h30"), slurm()).find("--time 1h30"),
            std::string::npos);
  EXPECT_NE(refusal(gpu_plan(72), options("gpu"), slurm()).find("18 nodes"), std::string::npos);
  EXPECT_NE(refusal(cpu_plan(2, 64), options("cpu", "10m"), slurm()).find("48 CPUs"),
            std::string::npos);
}

TEST(Submit, AsksForTheMemoryOfANodesRanksAndSaysWhenThereIsLess) {
  Cluster cluster = slurm();
  const Submission got = make_submission(gpu_plan(4), options("gpu"), cluster);
  const auto& words = got.command;
  const auto memory = std::find_if(words.begin(), words.end(), [](const std::string& word) {
    return word.starts_with("--mem=");
  });
  ASSERT_NE(memory, words.end());
  EXPECT_GE(std::stoll(memory->substr(6)), 4 * 4096);
  for (NodeKind& kind : cluster.kinds) kind.memory_bytes = int64_t{8} << 30;
  const std::string text = refusal(gpu_plan(4), options("gpu"), cluster, ExitCode::does_not_fit);
  EXPECT_NE(text.find("--mem"), std::string::npos) << text;
  SubmitOptions own = options("gpu");
  own.memory = "100G";
  EXPECT_TRUE(has(make_submission(gpu_plan(4), own, cluster), "--mem=100G"));
}

TEST(Submit, TakesTheTimeFromTheDeckWhenItIsThere) {
  Deck deck = gpu_plan(2).deck;
  deck.run.walltime_seconds = 26 * 3600;
  const Submission got = make_submission(make_plan(deck), options("gpu", ""), slurm());
  EXPECT_TRUE(has(got, "--time=26:05:00")) << got.line();
}

TEST(Submit, GivesALargeModelMoreTimeForItsLastCheckpoint) {
  const Submission small = make_submission(gpu_plan(4), options("gpu"), slurm());
  for (const std::string& word : small.command) EXPECT_FALSE(word.starts_with("--signal")) << word;
  Deck deck = gpu_plan(4).deck;
  deck.model.dim = 4096;
  deck.model.mlp = 16384;
  deck.model.depth = 32;  // 6.4 billion parameters: 77 GB of state
  SubmitOptions large = options("gpu");
  large.memory = "0";
  const Submission got = make_submission(make_plan(deck), large, slurm());
  EXPECT_TRUE(has(got, "--signal=B:USR1@240")) << got.line();
  large.time = "4m";
  EXPECT_NE(refusal(make_plan(deck), large, slurm()).find("--time"), std::string::npos);
}

TEST(Submit, WritesALineThatAShellReadsBack) {
  SubmitOptions own = options("gpu");
  own.overrides = {"run.name=it's"};
  own.more = {"--constraint=v100&nvlink"};
  own.program = "/opt/vp 2/voltapile";
  const std::string line = make_submission(gpu_plan(2), own, slurm()).line();
  EXPECT_TRUE(line.starts_with("'VOLTAPILE=/opt/vp 2/voltapile' sbatch ")) << line;
  EXPECT_NE(line.find(" '--constraint=v100&nvlink' /scripts/slurm.sbatch deck.toml --set "
                      "'run.name=it'\\''s'"),
            std::string::npos)
      << line;
}

TEST(Submit, SpeaksPbs) {
  SubmitOptions own = options("", "30h");
  own.gpus_per_node = 4;
  own.cpus_per_task = 8;
  own.overrides = {"optimizer.lr=1e-4"};
  own.memory = "64gb";
  const Submission got = make_submission(gpu_plan(5), own, {{Queue::pbs}, {}});
  EXPECT_TRUE(has(got,
                  "select=1:ncpus=24:mpiprocs=3:ngpus=3:mem=64gb+1:ncpus=16:mpiprocs=2:ngpus=2"
                  ":mem=64gb"))
      << got.line();
  EXPECT_TRUE(has(got, "walltime=30:00:00")) << got.line();
  EXPECT_TRUE(has(got,
                  "VOLTAPILE_DECK=deck.toml,VOLTAPILE_CHANGES=--set optimizer.lr=1e-4,"
                  "VOLTAPILE_JOBSCRIPTS=/scripts"))
      << got.line();
  EXPECT_EQ(got.command.back(), "/scripts/pbs.sh");
  own.overrides = {"optimizer.betas=[0.9,0.95]"};  // its comma would divide qsub's list
  EXPECT_NE(refusal(gpu_plan(5), own, {{Queue::pbs}, {}}).find("write it into the deck"),
            std::string::npos);
}

TEST(Submit, SpeaksLsf) {
  SubmitOptions own = options("q", "90m");
  own.gpus_per_node = 4;
  const Submission got = make_submission(gpu_plan(8), own, {{Queue::lsf}, {}});
  const std::string line = got.line();
  EXPECT_TRUE(
      line.starts_with("bsub -J small -o small.%J.log -n 8 -R 'span[ptile=4]' -gpu num=4 "
                       "-W 1:30 -q q -r -Q 75 -wa USR1 -wt 5 /scripts/lsf.sh deck.toml"))
      << line;
}

TEST(Submit, ASuccessfulCommandIsTheOnlyGoodOne) {
  EXPECT_NO_THROW(submit({{"VOLTAPILE_TEST=yes"}, {"sh", "-c", "[ $VOLTAPILE_TEST = yes ]"}, {}}));
  EXPECT_THROW(submit({{}, {"false"}, {}}), Error);
  EXPECT_THROW(submit({{}, {"no-such-queue"}, {}}), Error);
}

}  // namespace
}  // namespace voltapile
