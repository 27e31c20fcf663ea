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
  bool ema = false;     // averaged weights as well
  std::string refusal;  // why it was not written past the page cache; empty: it was
  std::string file;
  int64_t bytes = 0;
  std::string digest;
  PieceOwner owner;
  std::vector<StoredPiece> pieces;
  std::vector<StoredRange> ranges;  // ascending
};

// Writes /master, /m and /v, one flat dataset a piece: HDF5 lays the file out, then the values of
// `source` are put into their places in the order of the file, which is that of the pieces but for
// small ones. Returns when the file is on the disk. Error(failure) when a write was refused or a
// value is NaN: NaN is what tells an absent element. Calls `may_go_on` before each slab, which ends
// the writing by an exception.
ShardReport write_shard(const std::filesystem::path& folder, int rank, int64_t step,
                        const PieceOwner& owner, const std::vector<Piece>& pieces,
                        StateSource& source, const std::function<void()>& may_go_on);

// The pieces' own views, which must stay as they are.
class ViewSource final : public StateSource {
 public:
  explicit ViewSource(const std::vector<Piece>& pieces) : pieces_(pieces) {}
  bool averaged() const override { return !pieces_.empty() && pieces_.front().ema; }
  void begin(const std::vector<Tensor>& order) override { left_ = order; }
  std::span<const float> take() override;

 private:
  const std::vector<Piece>& pieces_;
  std::vector<Tensor> left_;
  size_t next_ = 0;
  int64_t taken_ = 0;  // of left_[next_]
};

std::string to_text(const ShardReport& report);
ShardReport shard_report(const std::string& text);

}  // namespace voltapile
