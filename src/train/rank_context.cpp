#include <algorithm>
#include <cstring>

#include "voltapile/device/host/memory.hpp"
#include "voltapile/train/engine.hpp"

namespace voltapile {
namespace {

constexpr size_t kDiskBlock = 4096;
constexpr int64_t kCopyGrain = 1 << 20;  // elements

std::span<std::byte> bytes_at(const TensorView& view) {
  return {static_cast<std::byte*>(view.data), view.bytes()};
}

// A chunk's weights on the device from this data rank's shard on the host and the other ranks'.
void gather_from(const RankContext& context, int chunk, const void* shard) {
  const Range own = context.shard(chunk);
  const TensorView all = context.weights(chunk), mine = all.slice_flat(own.begin, own.end);
  Device& device = context.device();
  Stream& stream = device.stream(Lane::dp);
  device.copy(mine.data, shard, mine.bytes(), stream);
  if (context.plan().deck.optimizer.zero == 1) context.links().data->all_gather(mine, all, stream);
  device.wait_on_host(device.record(stream));
}

// For the optimizer on the host: beside the rank's GPU, whose copies then stay on one socket.
std::unique_ptr<ThreadPool> make_host_pool(const Plan& plan, const Device& device, int threads) {
  if (plan.deck.memory.optimizer == Home::device) return std::make_unique<ThreadPool>(1);
  const std::string gpu = device.pci_address();
  return gpu.empty() ? std::make_unique<ThreadPool>(threads)
                     : std::make_unique<ThreadPool>(threads, host::cpus_near(gpu));
}

}  // namespace

RankContext::RankContext(const Plan& plan, Device& device, Links& links, int rank, int threads)
    : plan_(plan),
      device_(device),
      links_(links),
      coord_(plan.mesh.coord(rank)),
      host_pool_(make_host_pool(plan, device, threads)),
      arena_(device, plan.train.buffers[static_cast<size_t>(coord_.pp)], *host_pool_),
      on_disk_(plan.chunks.size()) {
  for (int chunk = 0; chunk < static_cast<int>(plan.chunks.size()); ++chunk) {
    if (plan.chunks[static_cast<size_t>(chunk)].rank != coord_.pp) continue;
    chunks_.push_back(chunk);
    const auto place = [&](size_t bytes) {
      const size_t at = disk_bytes_;
      disk_bytes_ += (bytes + kDiskBlock - 1) / kDiskBlock * kDiskBlock;
      return at;
    };
    OnDisk& on_disk = on_disk_[static_cast<size_t>(chunk)];
    if (plan.deck.memory.optimizer == Home::nvme)
      on_disk.state = place(value_bytes(plan, plan.train, Value::state, chunk));
    if (plan.deck.memory.weights == Home::nvme)
      on_disk.weights = place(value_bytes(plan, plan.train, Value::host_weights, chunk));
  }
}

bool RankContext::has_first_chunk() const { return !chunks_.empty() && chunks_.front() == 0; }
bool RankContext::has_last_chunk() const {
  return !chunks_.empty() && chunks_.back() == plan_.train.shape.chunks.last();
}

TensorView RankContext::weights(int chunk) const {
  return {arena_.at(Value::weights, chunk, -1),
          plan_.train.sizes.working,
          {plan_.chunks[static_cast<size_t>(chunk)].parameters.elements}};
}

TensorView RankContext::gradients(int chunk) const {
  return {arena_.at(Value::gradients, chunk, -1),
          accumulate_type(plan_.train.sizes.working),
          {plan_.chunks[static_cast<size_t>(chunk)].parameters.elements}};
}

TensorView RankContext::reduced(int chunk) const {
  const Range own = shard(chunk);
  if (plan_.reduced_in_place) {
    void* const place = gradients(chunk).slice_flat(own.begin, own.end).data;
    return {place, plan_.gradient_store, {own.end - own.begin}};
  }
  return {arena_.at(Value::reduced, chunk, -1), plan_.gradient_store, {own.end - own.begin}};
}

Range RankContext::shard(int chunk) const {
  return voltapile::shard(plan_.chunks[static_cast<size_t>(chunk)].parameters,
                          plan_.deck.optimizer.zero, plan_.mesh.dp, coord_.dp);
}

TensorView RankContext::host_weights(int chunk) const {
  const Range own = shard(chunk);
  return {
      arena_.at(Value::host_weights, chunk, -1), plan_.train.sizes.working, {own.end - own.begin}};
}

TensorView RankContext::host_gradients(int chunk) const {
  const Range own = shard(chunk);
  return {arena_.at(Value::host_gradients, chunk, -1), plan_.gradient_store, {own.end - own.begin}};
}

TensorView RankContext::state(int chunk, StatePart part) const {
  const PlacedState placed = state_layout(plan_, chunk)[part];
  if (placed.elements == 0) return {};
  return {arena_.at(Value::state, chunk, -1) + placed.offset, placed.dtype, {placed.elements}};
}

TensorView RankContext::whole_state(int chunk) const {
  const size_t bytes = value_bytes(plan_, plan_.train, Value::state, chunk);
  return {arena_.at(Value::state, chunk, -1), DType::u8, {static_cast<int64_t>(bytes)}};
}

host::Moments8 RankContext::moments(int chunk) const {
  return {.m_codes = state(chunk, StatePart::m_codes),
          .v_codes = state(chunk, StatePart::v_codes),
          .m_scales = state(chunk, StatePart::m_scales),
          .v_scales = state(chunk, StatePart::v_scales)};
}

host::DiskFile& RankContext::disk() const {
  if (!disk_)
    disk_ = std::make_unique<host::DiskFile>(
        plan_.deck.memory.nvme_dir,
        format("{}_rank_{:05}", plan_.deck.run.name, plan_.mesh.rank(coord_)), disk_bytes_);
  return *disk_;
}

void RankContext::put_weights(int chunk, const Range& part, const std::byte* data) {
  if (plan_.deck.memory.weights == Home::device) {
    const TensorView here = weights(chunk).slice_flat(part.begin, part.end);
    Stream& stream = device_.stream(Lane::compute);
    device_.copy(here.data, data, here.bytes(), stream);
    device_.wait_on_host(device_.record(stream));
    return;
  }
  const int64_t first = shard(chunk).begin;
  const TensorView here = host_weights(chunk).slice_flat(part.begin - first, part.end - first);
  std::memcpy(here.data, data, here.bytes());
}

void RankContext::put_weight_shard(int chunk, const std::byte* data) {
  if (plan_.deck.memory.weights != Home::device) {
    const TensorView here = host_weights(chunk);
    std::memcpy(here.data, data, here.bytes());
    if (plan_.deck.memory.weights == Home::nvme) save_weights(chunk);
    return;
  }
  gather_from(*this, chunk, data);
}

void RankContext::put_state(int chunk, const Range& part, const ShardState<const float>& from) {
  const bool on_device = plan_.deck.memory.optimizer == Home::device;
  const int64_t first = shard(chunk).begin;
  const int64_t begin = part.begin - first, end = part.end - first;
  Stream& stream = device_.stream(Lane::compute);
  const auto put = [&](StatePart which, const float* data) {
    const TensorView whole = state(chunk, which);
    if (!whole || data == nullptr) return;
    const TensorView here = whole.slice_flat(begin, end);
    if (on_device) device_.copy(here.data, data, here.bytes(), stream);
    else
      host_pool_->for_each_range(end - begin, kCopyGrain, [&](int64_t from_here, int64_t to_here) {
        std::copy(data + from_here, data + to_here, here.as<float>() + from_here);
      });
  };
  put(StatePart::master, from.master);
  put(StatePart::m, from.m);
  put(StatePart::v, from.v);
  put(StatePart::ema, from.ema);
  if (on_device) device_.wait_on_host(device_.record(stream));
  if (const host::Moments8 all = moments(chunk); all.m_codes && from.m != nullptr) {
    const Shape shape{end - begin};
    const int64_t block = begin / kQuantiseBlock;
    const int64_t end_block = (end + kQuantiseBlock - 1) / kQuantiseBlock;
    VP_CHECK(begin % kQuantiseBlock == 0, "a part from {} on of 8-bit moments", begin);
    host::encode_moments(*host_pool_, {const_cast<float*>(from.m), DType::f32, shape},
                         {const_cast<float*>(from.v), DType::f32, shape},
                         {.m_codes = all.m_codes.slice_flat(begin, end),
                          .v_codes = all.v_codes.slice_flat(begin, end),
                          .m_scales = all.m_scales.slice_flat(block, end_block),
                          .v_scales = all.v_scales.slice_flat(block, end_block)});
  }
}

// On nvme a chunk's state and weights pass through their slots: between steps no lane uses them.
void RankContext::keep(int chunk) {
  if (plan_.deck.memory.optimizer == Home::nvme) save_state(chunk);
  if (plan_.deck.memory.weights == Home::nvme) save_weights(chunk);
}

void RankContext::get_state(int chunk, const ShardState<float>& into) const {
  const bool on_device = plan_.deck.memory.optimizer == Home::device;
  if (plan_.deck.memory.optimizer == Home::nvme) load_state(chunk);
  Stream& stream = device_.stream(Lane::d2h);
  const auto get = [&](StatePart part, float* data) {
    const TensorView here = state(chunk, part);
    if (!here || data == nullptr) return;
    if (on_device) return device_.copy(data, here.data, here.bytes(), stream);
    std::memcpy(data, here.data, here.bytes());
  };
  get(StatePart::master, into.master);
  get(StatePart::m, into.m);
  get(StatePart::v, into.v);
  get(StatePart::ema, into.ema);
  if (on_device) device_.wait_on_host(device_.record(stream));
  if (const host::Moments8 quantised = moments(chunk); quantised.m_codes && into.m != nullptr) {
    const Range own = shard(chunk);
    const Shape shape{own.end - own.begin};
    host::decode_moments(*host_pool_, quantised, {into.m, DType::f32, shape},
                         {into.v, DType::f32, shape});
  }
}

void RankContext::bring(int chunk) const {
  if (plan_.deck.memory.optimizer == Home::nvme) load_state(chunk);
  if (plan_.deck.memory.weights == Home::device) return;
  if (plan_.deck.memory.weights == Home::nvme) load_weights(chunk);
  gather_from(*this, chunk, host_weights(chunk).data);
}

void RankContext::read_state(int chunk, size_t offset, std::span<std::byte> into) const {
  if (plan_.deck.memory.optimizer == Home::nvme)
    return disk().read(on_disk_[static_cast<size_t>(chunk)].state + offset, into);
  std::memcpy(into.data(), arena_.at(Value::state, chunk, -1) + offset, into.size());
}

void RankContext::load_state(int chunk) const {
  disk().read(on_disk_[static_cast<size_t>(chunk)].state, bytes_at(whole_state(chunk)));
}
void RankContext::save_state(int chunk) const {
  hold_.wait(chunk);
  disk().write(on_disk_[static_cast<size_t>(chunk)].state, bytes_at(whole_state(chunk)));
}
void RankContext::load_weights(int chunk) const {
  disk().read(on_disk_[static_cast<size_t>(chunk)].weights, bytes_at(host_weights(chunk)));
}
void RankContext::save_weights(int chunk) const {
  disk().write(on_disk_[static_cast<size_t>(chunk)].weights, bytes_at(host_weights(chunk)));
}

}  // namespace voltapile
