// Filling a file past the page cache: every byte lands where it belongs, whatever its place and its
// memory's.
#include "shard_file.hpp"

#include <cstring>
#include <deque>
#include <fstream>
#include <functional>
#include <vector>

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/wait.h>

#include "sample.hpp"

namespace voltapile {
namespace {

namespace fs = std::filesystem;

std::vector<std::byte> random_bytes(size_t count, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<uint64_t> words(count / sizeof(uint64_t) + 1);
  std::generate(words.begin(), words.end(), std::ref(random));
  const auto* bytes = reinterpret_cast<const std::byte*>(words.data());
  return {bytes, bytes + count};
}

std::vector<std::byte> read_file(const fs::path& path) {
  std::vector<std::byte> bytes(fs::file_size(path));
  std::ifstream(path, std::ios::binary)
      .read(reinterpret_cast<char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  return bytes;
}

// Writes random pieces one behind the other over most of a file, while others are under way;
// returns why it went through the cache.
std::string fill(const fs::path& path, size_t size, uint64_t seed) {
  const std::vector<std::byte> before = random_bytes(size, seed + 1000);
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(before.data()), static_cast<std::streamsize>(size));
  std::vector<std::byte> wanted = random_bytes(size, seed);
  std::mt19937_64 random(seed);
  ShardFile file(path);
  EXPECT_EQ(file.bytes(), static_cast<int64_t>(size));
  struct Held {
    int64_t written = 0;
    std::vector<std::byte> memory;
  };
  std::deque<Held> held;
  for (size_t at = 0; at < size;) {
    size_t count = 1 + random() % (random() % 4 == 0 ? 3'000'000 : 40'000);
    if (random() % 3 == 0) count = ShardFile::kPage * (1 + random() % 200) - at % ShardFile::kPage;
    count = std::min(count, size - at);
    if (random() % 4 == 0) {  // HDF5's own, which is read and stays
      std::vector<std::byte> there(count);
      file.read(static_cast<int64_t>(at), there);
      const auto old = before.begin() + static_cast<int64_t>(at);
      EXPECT_TRUE(std::equal(there.begin(), there.end(), old));
      std::copy(there.begin(), there.end(), wanted.begin() + static_cast<int64_t>(at));
      at += count;
      continue;
    }
    // A copy, so that memory begins at pages and elsewhere; spoilt once it may be.
    if (held.size() == 6) {
      file.wait(held.front().written);
      std::fill(held.front().memory.begin(), held.front().memory.end(), std::byte{0xEE});
      held.pop_front();
    }
    held.emplace_back().memory.resize(count + 2 * ShardFile::kPage);
    std::byte* const memory = held.back().memory.data();
    const auto begin = reinterpret_cast<uintptr_t>(memory);
    const size_t to_page = (ShardFile::kPage - begin % ShardFile::kPage) % ShardFile::kPage;
    std::byte* const from = memory + to_page + (random() % 2 == 0 ? 0 : random() % 4096);
    std::copy_n(wanted.begin() + static_cast<int64_t>(at), count, from);
    held.back().written = file.write(static_cast<int64_t>(at), {from, count});
    at += count;
  }
  file.close();
  const std::vector<std::byte> got = read_file(path);
  EXPECT_TRUE(got.size() == size && std::memcmp(got.data(), wanted.data(), size) == 0)
      << "seed " << seed;
  return file.refusal();
}

TEST(ShardFile, HoldsWhatWasWrittenWhereverItWasWritten) {
  const sample::Folder folder;
  for (uint64_t seed = 0; seed < (sample::full_run() ? 100 : 10); ++seed)
    fill(folder.path() / "file", 12'345'678 + 1000 * seed, seed);
}

TEST(ShardFile, SaysWhatTheFileSystemRefusesAndHoldsTheSame) {
  const sample::Folder folder;
  const auto mount_one = [&] {
    return unshare(CLONE_NEWNS | (geteuid() == 0 ? 0 : CLONE_NEWUSER)) == 0 &&
           mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
           mount("ramfs", folder.path().c_str(), "ramfs", 0, nullptr) == 0;
  };
  const pid_t child = fork();
  if (child == 0) {
    if (!mount_one()) std::_Exit(77);
    const std::string why = fill(folder.path() / "file", 5'000'000, 1);
    std::_Exit(!::testing::Test::HasFailure() && why == "Invalid argument" ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 77)
    GTEST_SKIP() << "no file system may be mounted here";
  EXPECT_EQ(status, 0);
}

TEST(ShardFile, AFileThatIsGoneOrTooShortIsAnError) {
  const sample::Folder folder;
  EXPECT_THROW(ShardFile(folder.path() / "nothing"), Error);
  std::ofstream(folder.path() / "short") << "abc";
  const ShardFile file(folder.path() / "short");
  std::vector<std::byte> into(4);
  EXPECT_THROW(file.read(0, into), Error);
}

}  // namespace
}  // namespace voltapile
