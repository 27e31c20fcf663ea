// Writes small IDX files, right ones and wrong ones, into a folder of its own.
#pragma once
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>
#include <unistd.h>
#include <zlib.h>

namespace voltapile {

using Bytes = std::vector<uint8_t>;

inline Bytes idx(uint32_t magic, const std::vector<uint32_t>& extents, const Bytes& payload) {
  Bytes bytes;
  const auto put = [&](uint32_t word) {
    for (int shift = 24; shift >= 0; shift -= 8)
      bytes.push_back(static_cast<uint8_t>(word >> shift));
  };
  put(magic);
  for (uint32_t extent : extents) put(extent);
  bytes.insert(bytes.end(), payload.begin(), payload.end());
  return bytes;
}

inline Bytes gzip(const Bytes& bytes) {
  z_stream z{};
  constexpr int kGzip = 16;
  EXPECT_EQ(deflateInit2(&z, 6, Z_DEFLATED, kGzip + MAX_WBITS, 8, Z_DEFAULT_STRATEGY), Z_OK);
  Bytes packed(deflateBound(&z, bytes.size()));
  z.next_in = const_cast<Bytef*>(bytes.data());
  z.avail_in = static_cast<uInt>(bytes.size());
  z.next_out = packed.data();
  z.avail_out = static_cast<uInt>(packed.size());
  EXPECT_EQ(deflate(&z, Z_FINISH), Z_STREAM_END);
  packed.resize(z.total_out);
  deflateEnd(&z);
  return packed;
}

inline Bytes operator+(Bytes left, const Bytes& right) {
  left.insert(left.end(), right.begin(), right.end());
  return left;
}

class Folder {
 public:
  Folder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "voltapile.XXXXXX").string();
    EXPECT_NE(mkdtemp(pattern.data()), nullptr);
    path_ = pattern;
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::string write(std::string_view name, const Bytes& bytes) const {
    const std::filesystem::path file = path_ / name;
    std::ofstream(file, std::ios::binary)
        .write(reinterpret_cast<const char*>(bytes.data()),
               static_cast<std::streamsize>(bytes.size()));
    return file.string();
  }

 private:
  std::filesystem::path path_;
};

}  // namespace voltapile
