// The file that keeps the GPU's choices of algorithms; no GPU is needed.
#include "../../../cuda_kernels/tuning.hpp"

#include <fstream>
#include <sstream>

#include <gtest/gtest.h>
#include <unistd.h>

#include "voltapile/base/error.hpp"

namespace voltapile::cuda {
namespace {

namespace fs = std::filesystem;

const Algorithm kOne = {1, 2, 3, 4, 5, 6, 7, 0xfedcba9876543210u};
const Algorithm kOther = {0, ~0ull, 0, 0, 0, 0, 0, 9};

class Tuning : public testing::Test {
 protected:
  Tuning() : folder_(fs::path(testing::TempDir()) / ("tuning." + std::to_string(getpid()))) {
    fs::create_directories(folder_);
    path_ = folder_ / "tuning.txt";
  }
  ~Tuning() override { fs::remove_all(folder_); }
  TuningFile open(const std::string& gpu = "GPU 1", uint64_t version = 130100) const {
    return TuningFile(path_, gpu, version);
  }
  std::string text() const {
    std::ostringstream text;
    text << std::ifstream(path_, std::ios::binary).rdbuf();
    return text.str();
  }
  void put(const std::string& text) const { std::ofstream(path_, std::ios::binary) << text; }

  fs::path folder_, path_;
};

TEST_F(Tuning, choices_are_there_when_the_file_is_read_again) {
  TuningFile first = open();
  EXPECT_FALSE(first.find("f16 8x8x8"));
  first.keep("f16 8x8x8", kOne);
  first.keep("f16 9x8x8", kOne);
  first.keep("f16 9x8x8", kOther);
  const TuningFile again = open();
  EXPECT_EQ(again.find("f16 8x8x8"), kOne);
  EXPECT_EQ(again.find("f16 9x8x8"), kOther);
  EXPECT_FALSE(again.find("f16 8x8"));
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), {}), 1) << "nothing is left aside";
}

TEST_F(Tuning, another_gpu_or_library_starts_anew) {
  open().keep("f16 8x8x8", kOne);
  EXPECT_FALSE(open("GPU 10").find("f16 8x8x8"));
  EXPECT_FALSE(open("GPU").find("f16 8x8x8"));
  EXPECT_FALSE(open("GPU 1", 13010).find("f16 8x8x8"));
  EXPECT_TRUE(open().find("f16 8x8x8"));
  open("GPU 2").keep("f16 9x8x8", kOther);
  EXPECT_FALSE(open().find("f16 8x8x8"));
  EXPECT_TRUE(open("GPU 2").find("f16 9x8x8"));
}

TEST_F(Tuning, a_damaged_file_is_ignored_whole) {
  TuningFile file = open();
  file.keep("f16 8x8x8", kOne);
  file.keep("f16 9x8x8", kOther);
  const std::string whole = text();
  for (size_t i = 0; i < whole.size(); i += 3) {
    std::string damaged = whole;
    damaged[i] = static_cast<char>(damaged[i] ^ 1);
    put(damaged);
    EXPECT_FALSE(open().find("f16 8x8x8")) << "byte " << i;
    put(whole.substr(0, i));
    EXPECT_FALSE(open().find("f16 8x8x8")) << "cut at " << i;
  }
  put(whole + "f16");
  EXPECT_FALSE(open().find("f16 8x8x8"));
  open().keep("f16 7x8x8", kOne);
  EXPECT_EQ(open().find("f16 7x8x8"), kOne) << "the damaged file was replaced";
}

TEST_F(Tuning, a_folder_that_is_not_there_is_made) {
  const auto path = folder_ / "new" / "deep" / "tuning.txt";
  TuningFile(path, "GPU 1", 1).keep("f16 8x8x8", kOne);
  EXPECT_EQ(TuningFile(path, "GPU 1", 1).find("f16 8x8x8"), kOne);
}

TEST_F(Tuning, a_folder_that_cannot_be_made_is_an_error) {
  std::ofstream(folder_ / "a_file") << "in the way";
  TuningFile file(folder_ / "a_file" / "tuning.txt", "GPU 1", 1);
  try {
    file.keep("f16 8x8x8", kOne);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::failure);
    EXPECT_NE(std::string(error.what()).find("tuning.txt"), std::string::npos);
  }
}

TEST_F(Tuning, without_a_path_choices_are_kept_in_memory) {
  TuningFile file({}, "GPU 1", 1);
  file.keep("f16 8x8x8", kOne);
  EXPECT_EQ(file.find("f16 8x8x8"), kOne);
}

}  // namespace
}  // namespace voltapile::cuda
