// Digests, and files that appear whole.
#include "voltapile/checkpoint/durable.hpp"

#include <csignal>
#include <filesystem>
#include <vector>

#include <gtest/gtest.h>
#include <sys/resource.h>

#include "voltapile/base/error.hpp"

#include "sample.hpp"

namespace voltapile {
namespace {

std::vector<std::byte> noise(size_t bytes) {
  std::mt19937_64 random(bytes);
  std::vector<std::byte> out(bytes);
  for (std::byte& b : out) b = static_cast<std::byte>(random());
  return out;
}

TEST(Durable, TheDigestIsXxh3OfTheBytesFromAPlaceOn) {
  const sample::Folder folder;
  // As `printf '%s' voltapile | xxhsum -H2` prints it.
  const std::string text = "voltapile";
  EXPECT_EQ(digest_of(std::as_bytes(std::span(text))), "46fd96eab51bc40b7d09a1f603eb2f98");
  // Sizes and places around the blocks in which files are read.
  const size_t block = size_t{4} << 20;
  for (const size_t bytes : {size_t{0}, size_t{1}, block - 1, block, block + 1, 2 * block + 7}) {
    const auto data = noise(bytes);
    write_synced(folder.path() / "x", data);
    for (const size_t from : {size_t{0}, size_t{1}, block - 1, block, block + 1}) {
      if (from > bytes) continue;
      const Digest digest = digest_file(folder.path() / "x", static_cast<int64_t>(from));
      EXPECT_EQ(digest.bytes, static_cast<int64_t>(bytes));
      EXPECT_EQ(digest.hex, digest_of(std::span(data).subspan(from))) << bytes << " " << from;
    }
  }
  EXPECT_THROW(digest_file(folder.path() / "absent"), Error);
}

TEST(Durable, PublishingLeavesAnOpenReaderTheOldFile) {
  const sample::Folder folder;
  const auto path = folder.path() / "x";
  const auto before = noise(100), after = noise(50);
  publish_file(path, before);
  std::FILE* reader = std::fopen(path.c_str(), "rb");
  ASSERT_NE(reader, nullptr);
  publish_file(path, after);
  std::vector<std::byte> got(200);
  got.resize(std::fread(got.data(), 1, got.size(), reader));
  std::fclose(reader);
  EXPECT_EQ(got, before);
  EXPECT_EQ(digest_file(path).hex, digest_of(after));
  EXPECT_THROW(publish_file(folder.path() / "no" / "x", after), Error);
}

TEST(Durable, WhatCannotBeWrittenWholeLeavesNothing) {
  const sample::Folder folder;
  const auto path = folder.path() / "x";
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{.rlim_cur = 10, .rlim_max = before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  EXPECT_THROW(publish_file(path, noise(100)), Error);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(Durable, DigestsOfRangesAreThoseOfTheirBytes) {
  const sample::Folder folder;
  const auto path = folder.path() / "file";
  std::vector<std::byte> bytes(size_t{9} << 20);  // read in several blocks
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * 7 + i / 4096);
  write_synced(path, bytes);
  const auto end = static_cast<int64_t>(bytes.size());
  const std::vector<ByteRange> ranges = {
      {0, 1}, {1, 5'000'000}, {5'000'003, 5'000'003 + 16}, {8 << 20, end}};
  const RangeDigests found = digest_ranges(path, ranges);
  EXPECT_EQ(found.whole.hex, digest_file(path).hex);
  EXPECT_EQ(found.whole.bytes, end);
  ASSERT_EQ(found.ranges.size(), ranges.size());
  const auto part = [&](int64_t from, int64_t to) {
    return digest_of(
        std::span(bytes).subspan(static_cast<size_t>(from), static_cast<size_t>(to - from)));
  };
  for (size_t i = 0; i < ranges.size(); ++i)
    EXPECT_EQ(found.ranges[i], part(ranges[i].begin, ranges[i].end)) << i;
  // Of a file that was cut, what is left counts.
  std::filesystem::resize_file(path, 5'000'010);
  const RangeDigests cut = digest_ranges(path, ranges);
  EXPECT_EQ(cut.ranges[1], found.ranges[1]);
  EXPECT_EQ(cut.ranges[2], part(5'000'003, 5'000'010));
  EXPECT_EQ(cut.ranges[3], part(0, 0));
}

}  // namespace
}  // namespace voltapile
