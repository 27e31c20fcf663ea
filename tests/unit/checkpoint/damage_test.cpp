// Damage to files on disk: all of it must be found.
#include <cstring>
#include <fstream>

#include <gtest/gtest.h>

#include "voltapile/checkpoint/checkpoint.hpp"
#include "voltapile/checkpoint/interchange.hpp"
#include "voltapile/h5/h5.hpp"

#include "sample.hpp"

// HDF5 1.10 loses memory of its own where it reads a damaged file; AddressSanitizer still looks at
// everything else.
extern "C" const char* __lsan_default_suppressions() { return "leak:libhdf5\n"; }

namespace voltapile {
namespace {

namespace fs = std::filesystem;

class Damage : public ::testing::Test {
 protected:
  Damage() {
    sample::save(folder_.path(), mesh_, 3, 1);
    checkpoint_ = folder_.path() / "step_00000003";
    copy_ = folder_.path() / "run" / "step_00000003";
    fs::create_directory(copy_.parent_path());
    fs::create_directory_symlink(copy_.filename(), copy_.parent_path() / "latest");
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
  // What `train` says, on two ranks, instead of taking the copy; empty when it would take it.
  std::string refusal() {
    std::string said;
    spawn_ranks(2, [&](std::unique_ptr<Communicator> world) {
      try {
        choose_checkpoint(copy_.parent_path(), *world, OnDamage::refuse);
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ExitCode::bad_data);
        if (world->rank() == 0) said = error.what();
      }
    });
    return said;
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

// The datasets of a damaged shard that read otherwise than in the sound one, as messages name them;
// what no dataset shows, or what HDF5 cannot open any more, is its own structure.
std::vector<std::string> changed_tensors(const fs::path& sound, const fs::path& damaged) {
  const std::vector<std::string> structure = {"HDF5's own structure"};
  std::vector<std::string> changed;
  try {
    const h5::File a = h5::File::open(sound), b = h5::File::open(damaged);
    for (const std::string state : {"master", "m", "v"}) {
      const h5::Group group_a = a.open_group(state), group_b = b.open_group(state);
      for (const std::string& name : group_a.names()) {
        const h5::Dataset data_a = group_a.open_dataset(name), data_b = group_b.open_dataset(name);
        if (data_a.shape() != data_b.shape()) return structure;
        std::vector<float> values_a(static_cast<size_t>(data_a.shape().elements()));
        std::vector<float> values_b(values_a.size());
        data_a.read(values_a.data(), DType::f32);
        data_b.read(values_b.data(), DType::f32);
        if (std::memcmp(values_a.data(), values_b.data(), values_a.size() * sizeof(float)) != 0)
          changed.push_back(state + " of " + name);
      }
    }
  } catch (const Error&) { return structure; }
  return changed.empty() ? structure : changed;
}

TEST_F(Damage, AFlippedBitIsNamedWithItsTensorAndNeverLoads) {
  const int flips = sample::full_run() ? 500 : 50;
  std::mt19937_64 random(17);
  int tensors = 0;
  for (int i = 0; i < flips; ++i) {
    const std::string file = format("shard_{:05d}.h5", random() % 4);
    const uint64_t bytes = fs::file_size(copy_ / file);
    // Of five: one in the first bytes, where HDF5 finds everything, one at the end, three anywhere.
    const uint64_t byte = i % 5 == 0   ? random() % 96
                          : i % 5 == 1 ? bytes - 1 - random() % 96
                                       : random() % bytes;
    flip(copy_ / file, byte, static_cast<int>(random() % 8));
    const std::string said = refusal();
    EXPECT_NE(said.find(file), std::string::npos) << byte << ": " << said;
    EXPECT_THROW(compare_checkpoints(checkpoint_, copy_, Compared::weights), Error) << byte;
    const auto changed = changed_tensors(checkpoint_ / file, copy_ / file);
    for (const std::string& name : changed)
      EXPECT_NE(said.find(name), std::string::npos) << byte << ": " << name << " in " << said;
    // The range that is named has that byte.
    const size_t at = said.find("bytes ") + 6, colon = said.find(':', at);
    EXPECT_LE(std::stoull(said.substr(at)), byte) << said;
    EXPECT_GT(std::stoull(said.substr(colon + 1)), byte) << said;
    tensors += changed.front().starts_with("HDF5") ? 0 : 1;
    expect_found(file, format("bit of byte {}", byte));
  }
  EXPECT_GT(tensors, flips / 5);
}

TEST_F(Damage, FilesThatAreNotTheirOwnAreNamedAndNeverLoad) {
  const auto replace = [&](const fs::path& by) {
    fs::copy(by, copy_ / "shard_00002.h5", fs::copy_options::overwrite_existing);
  };
  replace(checkpoint_ / "shard_00001.h5");
  EXPECT_NE(refusal().find("shard_00002.h5: it is shard_00001.h5 under another name"),
            std::string::npos)
      << refusal();
  sample::save(folder_.path(), mesh_, 4, 1);
  replace(folder_.path() / "step_00000004" / "shard_00002.h5");
  EXPECT_NE(refusal().find("no tensor in it is what was saved"), std::string::npos) << refusal();
  fs::remove(copy_ / "shard_00002.h5");
  EXPECT_NE(refusal().find("missing; it held pieces of "), std::string::npos) << refusal();
  EXPECT_NE(refusal().find("blocks.0.attn.qkv.weight"), std::string::npos) << refusal();
}

TEST_F(Damage, WhatACutFileHasLostIsNamed) {
  const fs::path path = copy_ / "shard_00001.h5";
  fs::resize_file(path, fs::file_size(path) - 1);
  const std::string said = refusal();
  EXPECT_NE(
      said.find(format("{} bytes instead of {}", fs::file_size(path), fs::file_size(path) + 1)),
      std::string::npos)
      << said;
  EXPECT_NE(said.find(format(":{}, ", fs::file_size(path) + 1)), std::string::npos) << said;
}

TEST_F(Damage, DeepVerificationReadsEveryPiece) {
  const Verification found = verify_checkpoint(copy_, Depth::datasets);
  EXPECT_TRUE(found.faults.empty()) << join(found.faults, "\n");
  EXPECT_GE(found.datasets, 3 * 12);
  EXPECT_EQ(verify_checkpoint(copy_).datasets, 0);
}

TEST(FormatVersion, CheckpointsOfVersion1AreVerifiedAndLoad) {
  const fs::path old = VOLTAPILE_OLD_CHECKPOINT;
  const Verification found = verify_checkpoint(old, Depth::datasets);
  EXPECT_TRUE(found.faults.empty()) << join(found.faults, "\n");
  EXPECT_EQ(found.shards, 2);
  EXPECT_EQ(found.datasets, 0);
  EXPECT_EQ(sample::load_wrong(old, {1, 2, 1}, 3, 5), 0);
  const sample::Folder folder;
  const fs::path copy = folder.path() / "step";
  fs::copy(old, copy);
  fs::permissions(copy / "shard_00001.h5", fs::perms::owner_write, fs::perm_options::add);
  flip(copy / "shard_00001.h5", 20000, 3);
  const Verification damaged = verify_checkpoint(copy);
  ASSERT_EQ(damaged.faults.size(), 1u);
  EXPECT_NE(damaged.faults[0].find("shard_00001.h5: damaged: digest"), std::string::npos)
      << damaged.faults[0];
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
