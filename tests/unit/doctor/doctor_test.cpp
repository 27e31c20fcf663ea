// What the doctor says of variables and GPUs. Its driver names a library that stands for NVML.
#include "voltapile/doctor/doctor.hpp"

#include <cstdlib>

#include <gtest/gtest.h>

namespace voltapile {
namespace {

std::string fake_nvml;

// The finding about `what`, or one that says that there is none.
Finding find(const std::vector<Finding>& findings, const std::string& what) {
  for (const Finding& finding : findings)
    if (finding.what == what) return finding;
  return {.what = what, .value = "not found"};
}

std::vector<std::string> named(const std::vector<Finding>& findings) {
  std::vector<std::string> names;
  for (const Finding& finding : findings)
    names.push_back(finding.value.substr(0, finding.value.find(':')));
  return names;
}

using Names = std::vector<std::string>;

TEST(Doctor, names_variables_that_nothing_reads) {
  using namespace std::string_literals;
  const Readers readers{.nccl = "NCCL_DEBUG\0NCCL_ALGO_EXTRA\0"s,
                        .open_mpi = "OMPI_ALLOW_RUN_AS_ROOT\0"s,
                        .parameters =
                            "mca:btl:base:param:btl:value:\n"
                            "mca:btl:vader:param:btl_vader_free_list_num:value:8\n"};
  EXPECT_EQ(named(unread_variables({"HOME", "NCCL_DEBUG", "OMPI_ALLOW_RUN_AS_ROOT", "OMPI_MCA_btl",
                                    "OMPI_MCA_btl_vader_free_list_num", "OMPI_COMM_WORLD_RANK",
                                    "OMPI_CC", "VOLTAPILE", "VOLTAPILE_LAUNCHER"},
                                   readers)),
            Names());
  const Names unread = {"NCCL_ALGO", "NCCL_ASYNC_ERROR_HANDLING", "OMPI_MCA_btl_vader_free_list",
                        "OMPI_RUN_AS_ROOT", "VOLTAPILE_LAUNCHERS"};
  EXPECT_EQ(named(unread_variables(unread, readers)), unread);
  for (const Finding& finding : unread_variables(unread, readers)) {
    EXPECT_EQ(finding.health, Health::warning);
    EXPECT_FALSE(finding.advice.empty());
  }
}

TEST(Doctor, cannot_tell_what_an_absent_library_reads_but_that_it_is_absent) {
  EXPECT_EQ(named(unread_variables({"NCCL_DEBUG", "OMPI_MCA_btl", "OMPI_ANYTHING"}, {})),
            Names{"NCCL_DEBUG"});
}

TEST(Doctor, shows_gpus_and_their_faults) {
  ASSERT_FALSE(fake_nvml.empty()) << "the first argument is the library";
  const auto found = examine_gpus(fake_nvml);
  EXPECT_EQ(find(found, "GPU 0").health, Health::good) << find(found, "GPU 0").advice;
  EXPECT_EQ(find(found, "GPU 0").value, "Fake V100 0, sm_70, 32.0 GB free of 32.0 GB, 6 NVLinks");
  EXPECT_EQ(find(found, "GPU 1").health, Health::problem);
  EXPECT_NE(find(found, "GPU 1").advice.find("3 uncorrected"), std::string::npos);
  EXPECT_NE(find(found, "between GPUs").value.find("0-1"), std::string::npos);
  EXPECT_TRUE(has_problems(found));
}

TEST(Doctor, tells_no_driver_from_a_broken_one_and_from_lost_gpus) {
  EXPECT_FALSE(has_problems(examine_gpus("libno-such-library.so.1")));
  setenv("FAKE_FAILS", "1", 1);
  EXPECT_TRUE(has_problems(examine_gpus(fake_nvml)));
  unsetenv("FAKE_FAILS");
  setenv("FAKE_GPUS", "3", 1);
  EXPECT_EQ(find(examine_gpus(fake_nvml), "GPU 2").value, "does not answer");
  setenv("FAKE_GPUS", "0", 1);
  EXPECT_EQ(find(examine_gpus(fake_nvml), "GPUs").value, "none is visible");
  unsetenv("FAKE_GPUS");
}

}  // namespace
}  // namespace voltapile

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  if (argc > 1) voltapile::fake_nvml = argv[1];
  return RUN_ALL_TESTS();
}
