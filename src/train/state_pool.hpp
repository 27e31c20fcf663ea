// Private to train: takes a checkpoint of state that lives on the host or on nvme while the next
// step begins to change it.
#pragma once
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "voltapile/checkpoint/checkpoint.hpp"
#include "voltapile/train/engine.hpp"

namespace voltapile {

// A rank's pieces of a checkpoint, in the order in which a step updates their chunks.
struct RankPieces {
  struct Home {
    int chunk = 0;
    int64_t begin = 0;  // of its shard
  };
  std::vector<Piece> pieces;  // without views
  std::vector<Home> homes;    // of each
};
RankPieces pieces_of(const RankContext& context);

// A thread copies slab after slab into `pool`, a ring, as far as there is room, and releases each
// chunk when it has all of it; the writer takes slabs out at its own pace. So an update waits only
// for what does not fit into the pool, and what is written is of one step.
class StatePool final : public StateSource {
 public:
  // Before: context.hold() has begun with all chunks of `pieces`. `pool`: as Plan says, of
  // save_size(). `before_write` is called by each take(). All of it must outlive this.
  StatePool(const RankContext& context, const RankPieces& pieces, const Buffer& pool,
            const std::function<void()>& before_write);
  // Releases every chunk, whatever has been copied.
  ~StatePool() override;

  bool averaged() const override;
  void begin(const std::vector<Tensor>& order) override;
  std::span<const float> take() override;
  void give_back() override;

 private:
  struct Slab {
    size_t at = 0, bytes = 0;  // in the pool
    size_t elements = 0;
  };
  void copy_all();
  std::byte* wait_for_room(size_t bytes, Slab& slab);
  std::optional<size_t> room_for(size_t bytes) const;

  const RankContext& context_;
  const RankPieces& pieces_;
  std::byte* const pool_;
  const size_t pool_bytes_, slab_bytes_;
  const std::function<void()>& before_write_;
  std::vector<Tensor> order_;

  std::mutex mutex_;
  std::condition_variable filled_, freed_;
  std::deque<Slab> slabs_;  // oldest first
  size_t taken_ = 0;        // so many of the first of them, by the writer
  bool full_ = false;       // the copier waits for room
  bool stopping_ = false;
  std::exception_ptr fault_;
  std::thread copier_;
};

}  // namespace voltapile
