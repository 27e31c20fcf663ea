#include "state_pool.hpp"

#include <algorithm>
#include <map>

namespace voltapile {
namespace {

constexpr size_t kPage = 4096, kMostSlabBytes = size_t{8} << 20;
// So that copying, several writes at once and waiting for room overlap.
constexpr size_t kLeastSlabs = 16;

size_t round_up(size_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }
size_t round_down(size_t bytes) { return bytes / kPage * kPage; }

// In host memory, Moments8 hold both moments: whoever asks for one gets the blocks around it.
class Reader {
 public:
  explicit Reader(const RankContext& context) : context_(context) {}

  // Elements [begin, begin + into.size()) of a part of a chunk's shard, as f32.
  void read(int chunk, TensorView Piece::*part, int64_t begin, std::span<float> into) {
    const StateLayout layout = state_layout(context_.plan(), chunk);
    const PlacedState& placed = layout[stored_as(part)];
    if (placed.elements == 0) return decode(layout, chunk, part, begin, into);
    context_.read_state(chunk, placed.offset + static_cast<size_t>(begin) * sizeof(float),
                        std::as_writable_bytes(into));
  }

 private:
  static StatePart stored_as(TensorView Piece::*part) {
    if (part == &Piece::master) return StatePart::master;
    if (part == &Piece::m) return StatePart::m;
    return part == &Piece::v ? StatePart::v : StatePart::ema;
  }

  TensorView read_part(const StateLayout& layout, int chunk, StatePart part, int64_t begin,
                       int64_t end) {
    const PlacedState& placed = layout[part];
    const size_t element = bytes_of(placed.dtype);
    std::vector<std::byte>& bytes = encoded_[part];
    bytes.resize(static_cast<size_t>(end - begin) * element);
    context_.read_state(chunk, placed.offset + static_cast<size_t>(begin) * element, bytes);
    return {bytes.data(), placed.dtype, {end - begin}};
  }

  void decode(const StateLayout& layout, int chunk, TensorView Piece::*part, int64_t begin,
              std::span<float> into) {
    constexpr int64_t kBlock = StoredTensor::kBlock;
    const auto end = begin + static_cast<int64_t>(into.size());
    const int64_t first = begin / kBlock, last = (end + kBlock - 1) / kBlock;
    const int64_t from = first * kBlock,
                  to = std::min(last * kBlock, layout[StatePart::m_codes].elements);
    const auto codes = [&](StatePart which) { return read_part(layout, chunk, which, from, to); };
    const auto scales = [&](StatePart which) {
      return read_part(layout, chunk, which, first, last);
    };
    const host::Moments8 moments{.m_codes = codes(StatePart::m_codes),
                                 .v_codes = codes(StatePart::v_codes),
                                 .m_scales = scales(StatePart::m_scales),
                                 .v_scales = scales(StatePart::v_scales)};
    m_.resize(static_cast<size_t>(to - from));
    v_.resize(m_.size());
    host::decode_moments(alone_, moments, {m_.data(), DType::f32, {to - from}},
                         {v_.data(), DType::f32, {to - from}});
    const std::vector<float>& wanted = part == &Piece::m ? m_ : v_;
    std::copy_n(wanted.begin() + (begin - from), into.size(), into.begin());
  }

  const RankContext& context_;
  ThreadPool alone_{1};  // the others compute
  std::map<StatePart, std::vector<std::byte>> encoded_;
  std::vector<float> m_, v_;
};

}  // namespace

RankPieces pieces_of(const RankContext& context) {
  const Plan& plan = context.plan();
  RankPieces all;
  // Without shards, every data rank holds the same.
  if (plan.deck.optimizer.zero == 0 && context.coord().dp != 0) return all;
  for (const Instruction& step : plan.train.programs[static_cast<size_t>(context.coord().pp)]) {
    if (step.op != Op::update) continue;
    const Range own = context.shard(step.chunk);
    for (const FlatEntry& entry : plan.chunks[static_cast<size_t>(step.chunk)].parameters.entries) {
      const Parameter& parameter = plan.architecture.layers[static_cast<size_t>(entry.layer)]
                                       .parameters[static_cast<size_t>(entry.parameter)];
      if (parameter.split == Split::replicated && context.coord().tp != 0) continue;
      const int64_t begin = std::max(entry.offset, own.begin),
                    end = std::min(entry.offset + entry.elements, own.end);
      if (begin >= end) continue;
      all.pieces.push_back(
          {.parameter = &parameter, .begin = begin - entry.offset, .end = end - entry.offset});
      all.homes.push_back({step.chunk, begin - own.begin});
    }
  }
  return all;
}

StatePool::StatePool(const RankContext& context, const RankPieces& pieces, const Buffer& pool,
                     const std::function<void()>& before_write)
    : context_(context),
      pieces_(pieces),
      pool_(pool.data()),
      pool_bytes_(round_down(pool.bytes())),
      slab_bytes_(std::min(kMostSlabBytes, round_down(pool_bytes_ / kLeastSlabs))),
      before_write_(before_write) {
  VP_CHECK(slab_bytes_ > 0, "a pool of {} bytes has no room for {} slabs", pool.bytes(),
           kLeastSlabs);
}

StatePool::~StatePool() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  freed_.notify_all();
  if (copier_.joinable()) copier_.join();
  context_.hold().release_all();
}

bool StatePool::averaged() const { return context_.plan().deck.optimizer.ema > 0; }

void StatePool::begin(const std::vector<Tensor>& order) {
  order_ = order;
  copier_ = std::thread([this] {
    try {
      copy_all();
    } catch (...) {
      const std::lock_guard lock(mutex_);
      fault_ = std::current_exception();
    }
    filled_.notify_all();
  });
}

void StatePool::copy_all() {
  Reader reader(context_);
  std::map<int, size_t> left;  // tensors of each chunk
  for (int chunk : context_.chunks()) left[chunk] = 0;
  for (const Tensor& tensor : order_) ++left[pieces_.homes[tensor.piece].chunk];
  for (const auto& [chunk, tensors] : left)
    if (tensors == 0) context_.hold().release(chunk);
  for (const Tensor& tensor : order_) {
    const RankPieces::Home& home = pieces_.homes[tensor.piece];
    const Piece& piece = pieces_.pieces[tensor.piece];
    const int64_t size = piece.end - piece.begin;
    for (int64_t done = 0; done < size;) {
      const auto count =
          std::min<size_t>(slab_bytes_ / sizeof(float), static_cast<size_t>(size - done));
      Slab slab{.elements = count};
      std::byte* const at = wait_for_room(round_up(count * sizeof(float)), slab);
      if (at == nullptr) return;
      reader.read(home.chunk, tensor.part, home.begin + done,
                  {reinterpret_cast<float*>(at), count});
      {
        const std::lock_guard lock(mutex_);
        slabs_.push_back(slab);
      }
      filled_.notify_all();
      done += static_cast<int64_t>(count);
    }
    if (--left[home.chunk] == 0) context_.hold().release(home.chunk);
  }
}

// Null where nobody will take any more.
std::byte* StatePool::wait_for_room(size_t bytes, Slab& slab) {
  std::unique_lock lock(mutex_);
  std::optional<size_t> room;
  freed_.wait(lock, [&] {
    room = room_for(bytes);
    full_ = !room;
    if (full_) filled_.notify_all();
    return stopping_ || room;
  });
  if (stopping_) return nullptr;
  slab.at = *room;
  slab.bytes = bytes;
  return pool_ + slab.at;
}

// Behind the newest slab, or from the beginning again, short of the oldest.
std::optional<size_t> StatePool::room_for(size_t bytes) const {
  if (slabs_.empty()) return 0;
  const size_t oldest = slabs_.front().at, end = slabs_.back().at + slabs_.back().bytes;
  const bool wrapped = slabs_.back().at < oldest;
  if (end + bytes <= (wrapped ? oldest : pool_bytes_)) return end;
  if (!wrapped && bytes <= oldest) return 0;
  return std::nullopt;
}

std::span<const float> StatePool::take() {
  if (before_write_) before_write_();
  std::unique_lock lock(mutex_);
  filled_.wait(lock, [&] { return slabs_.size() > taken_ || full_ || fault_ != nullptr; });
  if (slabs_.size() > taken_) {
    const Slab& slab = slabs_[taken_++];
    return {reinterpret_cast<const float*>(pool_ + slab.at), slab.elements};
  }
  if (fault_ != nullptr) std::rethrow_exception(fault_);
  return {};
}

void StatePool::give_back() {
  {
    const std::lock_guard lock(mutex_);
    VP_CHECK(taken_ > 0, "nothing is held that could be given back");
    slabs_.pop_front();
    --taken_;
    full_ = false;  // until the copier has looked
  }
  freed_.notify_all();
}

}  // namespace voltapile
