// Damage to files on disk: all of it must be found.
#include <fstream>

#include <gtest/gtest.h>

#include "voltapile/checkpoint/checkpoint.hpp"

#include "sample.hpp"

namespace voltapile {
namespace {

namespace fs = std::filesystem;

class Damage : public ::testing::Test {
 protected:
  Damage() {
    sample::save(folder_.path(), mesh_, 3, 1);
    checkpoint_ = folder_.path() / "step_00000003";
    copy_ = folder_.path() / "copy";
    restore();
  }
  void restore() {
    fs::remove_all(copy_);
    fs::copy(checkpoint_, copy_);
  }
  // What verify says; exactly one of the faults must name `file`.
  void expect_found(const std::string& file, const std::string& what) {
    const Verification found = verify_checkpoint(copy_);
    ASSERT_EQ(found.faults.size(), 1u) << file << " " << what;
    EXPECT_NE(found.faults[0].find(file), std::string::npos) << found.faults[0];
    restore();
  }
  ExitCode load_code() {
    try {
      sample::load_wrong(copy_, mesh_, 3, 1);
    } catch (const Error& error) { return error.code(); }
    return ExitCode::done;
  }
  Mesh mesh_{1, 2, 2};
  sample::Folder folder_;
  fs::path checkpoint_, copy_;
};

void flip(const fs::path& path, uint64_t byte, int bit) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(static_cast<std::streamoff>(byte));
  const char old = static_cast<char>(file.get());
  file.seekp(static_cast<std::streamoff>(byte));
  file.put(static_cast<char>(old ^ (1 << bit)));
}

TEST_F(Damage, AnUntouchedCopyIsGood) {
  EXPECT_EQ(verify_checkpoint(copy_).faults, std::vector<std::string>{});
  EXPECT_EQ(load_code(), ExitCode::done);
}

TEST_F(Damage, AnyFlippedBitIsFound) {
  const int flips = sample::full_run() ? 2000 : 60;
  std::mt19937_64 random(11);
  for (const std::string file : {"index.h5", "shard_00000.h5", "shard_00003.h5"}) {
    const uint64_t bytes = fs::file_size(copy_ / file);
    for (int i = 0; i < flips; ++i) {
      const uint64_t byte = i == 0 ? 0 : i == 1 ? bytes - 1 : random() % bytes;
      flip(copy_ / file, byte, static_cast<int>(random() % 8));
      if (file == "index.h5") {
        EXPECT_EQ(load_code(), ExitCode::bad_data) << byte;
        EXPECT_THROW(read_run_state(copy_), Error) << byte;
      }
      expect_found(file, format("bit of byte {}", byte));
    }
  }
}

TEST_F(Damage, ACutFileIsFoundByVerifyAndLoad) {
  for (const std::string file : {"index.h5", "shard_00001.h5"}) {
    const uint64_t bytes = fs::file_size(copy_ / file);
    for (const uint64_t left : {uint64_t{0}, uint64_t{1}, bytes / 2, bytes - 1, bytes + 1}) {
      fs::resize_file(copy_ / file, left);
      EXPECT_EQ(load_code(), ExitCode::bad_data) << file << " " << left;
      expect_found(file, format("{} bytes of {}", left, bytes));
    }
  }
}

TEST_F(Damage, AMissingFileIsFoundByVerifyAndLoad) {
  for (const std::string file : {"index.h5", "shard_00000.h5", "shard_00002.h5"}) {
    fs::remove(copy_ / file);
    EXPECT_EQ(load_code(), ExitCode::bad_data) << file;
    expect_found(file, "missing");
    fs::remove(copy_ / file);
    fs::create_directory(copy_ / file);
    EXPECT_EQ(load_code(), ExitCode::bad_data) << file;
    expect_found(file, "a folder");
  }
}

TEST_F(Damage, SwappedShardsAreFound) {
  fs::rename(copy_ / "shard_00001.h5", copy_ / "x");
  fs::rename(copy_ / "shard_00002.h5", copy_ / "shard_00001.h5");
  fs::rename(copy_ / "x", copy_ / "shard_00002.h5");
  const Verification found = verify_checkpoint(copy_);
  EXPECT_EQ(found.faults.size(), 2u);
}

TEST_F(Damage, AShardOfAnotherStepIsFound) {
  sample::save(folder_.path(), mesh_, 4, 1);
  fs::copy(folder_.path() / "step_00000004" / "shard_00002.h5", copy_ / "shard_00002.h5",
           fs::copy_options::overwrite_existing);
  expect_found("shard_00002.h5", "of another step");
}

TEST_F(Damage, AFolderThatIsNoCheckpointIsSaidToBeNone) {
  for (const fs::path& path : {folder_.path(), folder_.path() / "nowhere", copy_ / "index.h5"}) {
    const Verification found = verify_checkpoint(path);
    ASSERT_EQ(found.faults.size(), 1u);
    EXPECT_NE(found.faults[0].find("no checkpoint"), std::string::npos) << found.faults[0];
  }
}

}  // namespace
}  // namespace voltapile
