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
// What HDF5 has laid out: /master, /m and /v, one flat dataset a piece.
struct ShardLayout {
  // A dataset that waits for its values.
  struct Place {
    StateSource::Tensor tensor;
    std::string dataset;  // "/m/blocks.0.norm1.bias"
    int64_t at = 0;
    int64_t elements = 0;  // trailing padding of the piece left out
  };

  std::string file;
  PieceOwner owner;
  bool ema = false;                 // averaged weights as well
  std::vector<StoredPiece> pieces;  // those with elements
  std::vector<Place> places;        // in the order of the file; not in to_text()

  std::vector<StateSource::Tensor> order() const;
};

// Bytes [begin, end) of a shard and their digest. Together a shard's ranges are the whole file.
struct StoredRange {
  std::string dataset;  // empty: HDF5's own structure
  int64_t begin = 0, end = 0;
  std::string digest;
};
// A dataset as messages call it: "m of blocks.0.norm1.bias".
std::string tensor_of(const std::string& dataset);

struct ShardReport {
  std::string refusal;  // why it was not written past the page cache; empty: it was
  int64_t bytes = 0;
  std::string digest;
  std::vector<StoredRange> ranges;  // ascending
};

// Makes a rank's file, without values. Its order is that of the pieces but for small ones.
// Error(failure) when a write was refused.
ShardLayout lay_out_shard(const std::filesystem::path& folder, int rank, int64_t step,
                          const PieceOwner& owner, const std::vector<Piece>& pieces, bool ema);
// Puts the values of `source`, which has begun with the layout's order, into their places. Returns
// when the file is on the disk. Error(failure) when a write was refused or a value is NaN: NaN is
// what tells an absent element. Calls `may_go_on` before each slab, which ends the writing by an
// exception.
ShardReport fill_shard(const std::filesystem::path& folder, const ShardLayout& layout,
                       const std::vector<Piece>& pieces, StateSource& source,
                       const std::function<void()>& may_go_on);

// The pieces' own views, which must stay as they are.
class ViewSource final : public StateSource {
 public:
  explicit ViewSource(const std::vector<Piece>& pieces) : pieces_(pieces) {}
  bool averaged() const override { return !pieces_.empty() && pieces_.front().ema; }
  void begin(const std::vector<Tensor>& order) override { left_ = order; }
  std::span<const float> take() override;
  void give_back() override {}

 private:
  const std::vector<Piece>& pieces_;
  std::vector<Tensor> left_;
  size_t next_ = 0;
  int64_t taken_ = 0;  // of left_[next_]
};

std::string to_text(const ShardLayout& layout);
ShardLayout shard_layout(const std::string& text);
std::string to_text(const ShardReport& report);
ShardReport shard_report(const std::string& text);

}  // namespace voltapile
