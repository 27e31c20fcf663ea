#include "byte_reader.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include <zlib.h>

#include "voltapile/base/error.hpp"
#include "voltapile/base/units.hpp"

namespace voltapile {
namespace {

constexpr size_t kBufferBytes = size_t{1} << 18;
// zlib counts in 32 bits.
constexpr size_t kLargestPiece = size_t{1} << 30;
// Deflate packs at most 258 bytes into 2 bits; zlib's own documentation gives 1032:1 as the limit.
constexpr uint64_t kLargestRatio = 1032;

struct CloseFile {
  void operator()(std::FILE* file) const { std::fclose(file); }
};

}  // namespace

struct ByteReader::Impl {
  std::string key, path;
  std::unique_ptr<std::FILE, CloseFile> file;
  uint64_t file_bytes = 0;
  bool gzip = false;
  bool stream_ended = false;
  int streams_done = 0;
  std::array<uint8_t, kBufferBytes> buffer;
  z_stream z{};

  ~Impl() {
    if (gzip) inflateEnd(&z);
  }
};

ByteReader::ByteReader(std::string key, std::string path) : impl_(std::make_unique<Impl>()) {
  impl_->key = std::move(key);
  impl_->path = std::move(path);
  namespace fs = std::filesystem;
  std::error_code error;
  const fs::file_status status = fs::status(impl_->path, error);
  if (status.type() == fs::file_type::not_found) {
    const bool packaged = impl_->path.starts_with("/usr/share/datasets/fashion-mnist/");
    fail(packaged ? "no such file; on Debian and Ubuntu it comes with: "
                    "apt-get install dataset-fashion-mnist"
                  : "no such file; a deck's relative names start at its own folder");
  }
  if (status.type() == fs::file_type::directory)
    fail("this is a directory; name the IDX file in it");
  if (error) fail(error.message());
  if (status.type() != fs::file_type::regular) fail("this is not a regular file");
  impl_->file_bytes = fs::file_size(impl_->path, error);
  if (error) fail(error.message());
  impl_->file.reset(std::fopen(impl_->path.c_str(), "rb"));
  if (!impl_->file) fail(std::strerror(errno));

  std::array<uint8_t, 2> first{};
  const size_t got = std::fread(first.data(), 1, first.size(), impl_->file.get());
  std::rewind(impl_->file.get());
  if (got == 2 && first[0] == 0x1f && first[1] == 0x8b) {
    constexpr int kGzipOnly = 16;
    const int result = inflateInit2(&impl_->z, kGzipOnly + MAX_WBITS);
    VP_CHECK(result == Z_OK, "zlib does not start: error {}", result);
    impl_->gzip = true;
  }
}

ByteReader::~ByteReader() = default;

void ByteReader::fail(const std::string& what) const {
  throw Error(ExitCode::bad_data, format("{} = \"{}\": {}", impl_->key, impl_->path, what));
}

uint64_t ByteReader::most_bytes() const {
  return impl_->gzip ? impl_->file_bytes * kLargestRatio : impl_->file_bytes;
}

size_t ByteReader::read(std::span<uint8_t> into) {
  Impl& me = *impl_;
  const auto fread_into = [&](uint8_t* at, size_t bytes) {
    const size_t got = std::fread(at, 1, bytes, me.file.get());
    if (std::ferror(me.file.get())) fail(format("reading failed: {}", std::strerror(errno)));
    return got;
  };
  if (!me.gzip) return fread_into(into.data(), into.size());

  size_t given = 0;
  while (given < into.size()) {
    if (me.z.avail_in == 0) {
      me.z.next_in = me.buffer.data();
      me.z.avail_in = static_cast<uInt>(fread_into(me.buffer.data(), me.buffer.size()));
    }
    // A gzip file may hold several streams one after the other: what follows must be one more.
    const bool file_ended = me.z.avail_in == 0;
    if (me.stream_ended) {
      if (file_ended) break;
      inflateReset(&me.z);
      me.stream_ended = false;
    }
    const bool trailing = me.streams_done > 0 && me.z.total_out == 0;
    const std::string after_the_end =
        "something that is not gzip follows the end of the gzip stream; fetch the file again";
    if (file_ended) {
      if (trailing) fail(after_the_end);
      fail(
          format("the gzip stream is truncated: the file ends after {} bytes, in the middle of "
                 "the stream; fetch the file again",
                 show_grouped(static_cast<int64_t>(me.file_bytes))));
    }
    const size_t piece = std::min(into.size() - given, kLargestPiece);
    me.z.next_out = into.data() + given;
    me.z.avail_out = static_cast<uInt>(piece);
    const int result = inflate(&me.z, Z_NO_FLUSH);
    given += piece - me.z.avail_out;
    if (result == Z_STREAM_END) {
      me.stream_ended = true;
      ++me.streams_done;
    } else if (result != Z_OK && result != Z_BUF_ERROR) {
      if (trailing && me.z.total_out == 0) fail(after_the_end);
      fail(format("the gzip stream is damaged ({}); fetch the file again",
                  me.z.msg ? me.z.msg : "unknown fault"));
    }
  }
  return given;
}

}  // namespace voltapile
