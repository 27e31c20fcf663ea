#include <atomic>
#include <cmath>
#include <cstdlib>
#include <map>
#include <numeric>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>
#include <sched.h>

#include "voltapile/base/dtype.hpp"
#include "voltapile/base/error.hpp"
#include "voltapile/base/host.hpp"
#include "voltapile/base/philox.hpp"
#include "voltapile/base/tensor_view.hpp"
#include "voltapile/base/thread_pool.hpp"
#include "voltapile/base/units.hpp"

namespace voltapile {
namespace {

TEST(Philox, GivesThePublishedVectors) {
  // Known answers of Random123's philox4x32-10.
  EXPECT_EQ(philox({0, 0, 0, 0}, {0, 0}),
            (std::array<uint32_t, 4>{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}),
            (std::array<uint32_t, 4>{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
}

TEST(Philox, TruncatedNormalHasItsMomentsAndBounds) {
  const int n = 200000;
  double sum = 0, squares = 0, fourth = 0;
  for (int i = 0; i < n; ++i) {
    const double x = truncated_normal(7, 3, static_cast<uint64_t>(i));
    ASSERT_LE(std::abs(x), 2.0);
    sum += x, squares += x * x, fourth += x * x * x * x;
  }
  // Variance of a normal cut at two sigma: 1 - 4 phi(2) / (2 Phi(2) - 1) = 0.77374; fourth
  // moment 1.4160.
  EXPECT_NEAR(sum / n, 0, 0.01);
  EXPECT_NEAR(squares / n, 0.77374, 0.01);
  EXPECT_NEAR(fourth / n, 1.4160, 0.03);
}

TEST(Philox, TruncatedNormalInvertsTheDistribution) {
  const auto below = [](double x) { return 0.5 * std::erfc(-x * M_SQRT1_2); };
  for (uint64_t i = 0; i < 20000; ++i) {
    const auto words = random_words(7, Purpose::initial_weight, 3, i);
    const uint64_t bits = (uint64_t{words[0]} << 21) ^ (words[1] >> 11);
    const double u = (static_cast<double>(bits) + 0.5) * 0x1p-53;
    ASSERT_NEAR(below(truncated_normal(7, 3, i)), below(-2) + u * (below(2) - below(-2)), 1e-15);
  }
}

TEST(Philox, PermutedIsABijectionForEveryLength) {
  for (uint64_t n : {1, 2, 3, 5, 16, 17, 100, 1000}) {
    std::set<uint64_t> seen;
    for (uint64_t i = 0; i < n; ++i) seen.insert(permuted(i, n, 1, 2));
    EXPECT_EQ(seen.size(), n);
    EXPECT_EQ(*seen.rbegin(), n - 1);
  }
  int equal = 0;
  for (uint64_t i = 0; i < 1000; ++i) equal += permuted(i, 1000, 1, 2) == permuted(i, 1000, 1, 3);
  EXPECT_LT(equal, 10) << "two epochs share their order";
}

TEST(ThreadPool, CoversEveryIndexOnceWithBordersIndependentOfThreads) {
  for (int threads : {1, 2, 5}) {
    ThreadPool pool(threads);
    for (int64_t count : {0, 1, 7, 64, 1000}) {
      std::vector<std::atomic<int>> hits(static_cast<size_t>(count));
      std::atomic<int> wrong_border{0};
      pool.for_each_range(count, 7, [&](int64_t begin, int64_t end) {
        if (begin % 7 != 0 || (end != count && end - begin != 7)) ++wrong_border;
        for (int64_t i = begin; i < end; ++i) ++hits[static_cast<size_t>(i)];
      });
      for (auto& hit : hits) EXPECT_EQ(hit.load(), 1);
      EXPECT_EQ(wrong_border.load(), 0);
    }
  }
}

TEST(ThreadPool, GivesEachThreadItsOwnShareAndEveryPieceOnce) {
  for (int threads : {1, 2, 5}) {
    ThreadPool pool(threads);
    for (int64_t count : {0, 1, 7, 64, 1000}) {
      std::vector<std::atomic<int>> hits(static_cast<size_t>(count));
      std::atomic<int> wrong_border{0};
      pool.for_each_share(count, 7, [&](int64_t begin, int64_t end) {
        if (begin % 7 != 0 || (end != count && end - begin != 7)) ++wrong_border;
        for (int64_t i = begin; i < end; ++i) ++hits[static_cast<size_t>(i)];
      });
      for (auto& hit : hits) EXPECT_EQ(hit.load(), 1);
      EXPECT_EQ(wrong_border.load(), 0);
    }
  }
  // The first thread waits in its share until another has done the whole of its own, and only then
  // would be helped.
  ThreadPool pool(2);
  const std::thread::id caller = std::this_thread::get_id();
  std::atomic<int> second_half{0}, by_caller{0};
  pool.for_each_share(10, 1, [&](int64_t begin, int64_t) {
    if (std::this_thread::get_id() == caller) {
      by_caller += begin >= 5;
      while (second_half < 5) std::this_thread::yield();
    } else if (begin >= 5) {
      ++second_half;
    }
  });
  EXPECT_EQ(by_caller.load(), 0);
}

TEST(ThreadPool, BindsItsThreadsToTheCpusGiven) {
  cpu_set_t allowed;
  ASSERT_EQ(sched_getaffinity(0, sizeof(allowed), &allowed), 0);
  int last = 0;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu)
    if (CPU_ISSET(static_cast<size_t>(cpu), &allowed)) last = cpu;
  const std::vector<int> cpus = {last};
  ThreadPool pool(2, cpus);
  const std::thread::id caller = std::this_thread::get_id();
  std::atomic<int> met{0}, elsewhere{0};
  pool.for_each_share(2, 1, [&](int64_t begin, int64_t) {
    if (std::this_thread::get_id() == caller) {
      while (met == 0) std::this_thread::yield();
      return;
    }
    if (begin == 1) met = 1;
    cpu_set_t mine;
    sched_getaffinity(0, sizeof(mine), &mine);
    if (CPU_COUNT(&mine) != 1 || !CPU_ISSET(static_cast<size_t>(last), &mine)) ++elsewhere;
  });
  EXPECT_EQ(elsewhere.load(), 0);
  cpu_set_t after;
  sched_getaffinity(0, sizeof(after), &after);
  EXPECT_TRUE(CPU_EQUAL(&allowed, &after)) << "the caller is left as it was";
}

TEST(ThreadPool, RethrowsTheBodysErrorAndStaysUsable) {
  ThreadPool pool(3);
  EXPECT_THROW(pool.for_each_range(100, 1,
                                   [](int64_t begin, int64_t) {
                                     if (begin == 42) throw Error(ExitCode::bad_data, "42");
                                   }),
               Error);
  std::atomic<int> calls{0};
  pool.for_each_range(10, 1, [&](int64_t, int64_t) { ++calls; });
  EXPECT_EQ(calls.load(), 10);
}

TEST(BFloat16, RoundsToNearestEvenAndKeepsNan) {
  EXPECT_EQ(float(BFloat16(1.0f)), 1.0f);
  EXPECT_EQ(BFloat16(std::bit_cast<float>(0x3f808000u)).bits, 0x3f80) << "tie goes to even";
  EXPECT_EQ(BFloat16(std::bit_cast<float>(0x3f818000u)).bits, 0x3f82) << "tie goes to even";
  EXPECT_TRUE(std::isnan(float(BFloat16(std::nanf("")))));
  EXPECT_TRUE(std::isinf(float(BFloat16(3.4e38f))));
}

TEST(Shape, FoldsIntoAMatrix) {
  const Shape shape{2, 3, 5};
  EXPECT_EQ(shape.rows(), 6);
  EXPECT_EQ(shape.columns(), 5);
  EXPECT_EQ(shape.text(), "(2, 3, 5)");
  EXPECT_EQ(Shape{}.elements(), 1);
}

TEST(TensorView, SlicesInsideItsBorders) {
  std::array<float, 6> data{};
  std::iota(data.begin(), data.end(), 0.0f);
  const TensorView view{data.data(), DType::f32, {3, 2}};
  EXPECT_EQ(view.slice_rows(1, 2).as<float>()[0], 2.0f);
  EXPECT_EQ(view.slice_flat(5, 6).as<float>()[0], 5.0f);
  EXPECT_THROW(view.slice_rows(2, 4), Error);
  EXPECT_THROW(view.as<double>(), Error);
}

TEST(Units, ReadsWhatPeopleWrite) {
  EXPECT_EQ(parse_bytes("32 GB"), 32'000'000'000);
  EXPECT_EQ(parse_bytes("1.5GiB"), 1'610'612'736);
  EXPECT_EQ(parse_bytes("512"), 512);
  for (auto bad : {"", "GB", "1 gb", "-1 GB", "1e400 GB", "nan GB", "12 parsecs"}) {
    EXPECT_EQ(parse_bytes(bad), std::nullopt) << bad;
  }
  EXPECT_EQ(parse_seconds("71h30m"), 71.5 * 3600);
  EXPECT_EQ(parse_seconds("90s"), 90);
  EXPECT_EQ(parse_seconds("2d"), 2 * 86400);
  for (auto bad : {"", "90", "30m1h", "1h1h", "-5s", "h"})
    EXPECT_EQ(parse_seconds(bad), std::nullopt) << bad;
}

TEST(Units, ShowsThreeDigits) {
  EXPECT_EQ(show_bytes(16.1e9), "16.1 GB");
  EXPECT_EQ(show_bytes(999.9e6), "1.00 GB");
  EXPECT_EQ(show_bytes(12), "12 B");
  EXPECT_EQ(show_seconds(0), "0 s");
  EXPECT_EQ(show_seconds(3723), "1h02m");
  EXPECT_EQ(show_seconds(0.0123), "12.3 ms");
  EXPECT_EQ(show_seconds(59.97), "1m00s");
  EXPECT_EQ(show_count(32.2e9), "32.2 B");
  EXPECT_EQ(show_grouped(60000), "60,000");
}

// The same on every machine, and in a job.
class Launcher {
 public:
  explicit Launcher(const std::map<std::string, std::string>& says) {
    for (const char* name : {"OMPI_COMM_WORLD_LOCAL_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
                             "MPI_LOCALNRANKS", "MPI_LOCALRANKID", "SLURM_STEP_TASKS_PER_NODE",
                             "SLURM_NODEID", "SLURM_NTASKS_PER_NODE", "SLURM_LOCALID"}) {
      const auto value = says.find(name);
      if (value == says.end()) unsetenv(name);
      else setenv(name, value->second.c_str(), 1);
    }
  }
};

TEST(Host, CountsTheRanksOfItsNodeAsTheLauncherSays) {
  Launcher none({});
  EXPECT_EQ(local_ranks(8), 8);
  EXPECT_EQ(local_rank(5), 5);
  Launcher open_mpi({{"OMPI_COMM_WORLD_LOCAL_SIZE", "4"},
                     {"OMPI_COMM_WORLD_LOCAL_RANK", "3"},
                     {"SLURM_STEP_TASKS_PER_NODE", "1(x2)"},
                     {"SLURM_LOCALID", "0"}});
  EXPECT_EQ(local_ranks(8), 4) << "mpirun's daemons, one a node, are a step of Slurm's";
  EXPECT_EQ(local_rank(7), 3);
  Launcher mpich({{"MPI_LOCALNRANKS", "2"}, {"MPI_LOCALRANKID", "1"}, {"SLURM_LOCALID", "0"}});
  EXPECT_EQ(local_ranks(8), 2);
  EXPECT_EQ(local_rank(7), 1);
  const auto srun = [](const char* list, const char* node) {
    Launcher slurm({{"SLURM_STEP_TASKS_PER_NODE", list}, {"SLURM_NODEID", node}});
    return local_ranks(99);
  };
  EXPECT_EQ(srun("4(x2)", "1"), 4);
  EXPECT_EQ(srun("3,1", "0"), 3);
  EXPECT_EQ(srun("3,1", "1"), 1);
  EXPECT_EQ(srun("4(x2),2,1(x3)", "2"), 2);
  EXPECT_EQ(srun("4(x2),2,1(x3)", "5"), 1);
  EXPECT_EQ(srun("4(x2)", "2"), 99) << "a node that the list does not have";
  EXPECT_EQ(srun("many", "0"), 99);
  Launcher last({});
}

}  // namespace
}  // namespace voltapile
