// One rank's file, and what the others must know about it.
#pragma once
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "voltapile/checkpoint/checkpoint.hpp"

namespace voltapile {

struct StoredPiece {
  std::string name;
  int64_t begin = 0, end = 0;  // of the flattened local tensor, trailing padding left out
};
// Bytes [begin, end) of a shard and their digest. Together a shard's ranges are the whole file.
struct StoredRange {
  std::string dataset;  // "/m/blocks.0.norm1.bias"; empty: HDF5's own structure
  int64_t begin = 0, end = 0;
  std::string digest;
};
struct ShardReport {
  bool ema = false;  // averaged weights as well
  std::string file;
  int64_t bytes = 0;
  std::string digest;
  PieceOwner owner;
  std::vector<StoredPiece> pieces;
  std::vector<StoredRange> ranges;  // ascending
};

// Writes /master, /m and /v, one flat dataset a piece, syncs the file, and reads it back: digests
// of the values in memory must be those of the file's bytes. Error(failure) when they are not, a
// write did not reach the file, or a value is NaN: NaN is what tells an absent element. Calls
// `may_go_on` now and then, which ends the writing by an exception.
ShardReport write_shard(const std::filesystem::path& folder, int rank, int64_t step,
                        const PieceOwner& owner, const std::vector<Piece>& pieces,
                        const std::function<void()>& may_go_on);

std::string to_text(const ShardReport& report);
ShardReport shard_report(const std::string& text);

}  // namespace voltapile
