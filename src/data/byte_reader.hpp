// Reads a file front to back, unpacking it when its content is gzip (whatever its name says).
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace voltapile {

class ByteReader {
 public:
  // `key` is the deck key that names the file, for messages. Throws Error(bad_data) when `path` is
  // not a readable regular file.
  ByteReader(std::string key, std::string path);
  ~ByteReader();
  ByteReader(const ByteReader&) = delete;
  ByteReader& operator=(const ByteReader&) = delete;

  // Fills `into` with the next bytes; gives fewer only at the end. Reaching the end of a gzip file
  // checks its CRC and length. Throws Error(bad_data) for a stream that is cut short, damaged, or
  // followed by something else.
  size_t read(std::span<uint8_t> into);
  // No more than this many bytes can come out, so that a header's claim can be checked before
  // memory is allocated for it.
  uint64_t most_bytes() const;
  // Throws Error(bad_data): `key = "path": what`.
  [[noreturn]] void fail(const std::string& what) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace voltapile
