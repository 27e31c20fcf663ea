#include "voltapile/tensor/arena.hpp"

#include "voltapile/base/error.hpp"

namespace voltapile {
Arena::Arena(Device& device, const BufferPlan& buffers, ThreadPool& host) : plan_(&buffers) {
  Pools pools;
  std::vector<Buffer> storage;
  for (const ValuePool& pool : buffers.pools) {
    size_t bytes = 0;
    for (size_t slot : pool.slot_bytes) bytes += slot;
    std::byte* next = nullptr;
    if (bytes > 0) {
      const std::string_view what = name_of(pool.value);
      storage.push_back(pool.home == Home::device    ? device.allocate(bytes, what)
                        : pool.value == Value::state ? device.allocate_compute(bytes, what, host)
                                                     : device.allocate_host(bytes, what));
      next = storage.back().data();
    }
    std::vector<std::byte*> slots;
    for (size_t slot : pool.slot_bytes) {
      slots.push_back(slot == 0 ? nullptr : next);
      if (slot > 0) next += slot;
    }
    pools.push_back(std::move(slots));
  }
  slots_ = std::make_shared<const Pools>(std::move(pools));
  storage_ = std::make_shared<const std::vector<Buffer>>(std::move(storage));
}

Arena::Arena(const Arena& memory, const BufferPlan& buffers)
    : plan_(&buffers), slots_(memory.slots_), storage_(memory.storage_) {
  for (size_t v = 0; v < buffers.pools.size(); ++v)
    VP_CHECK(buffers.pools[v].slot_bytes == memory.plan_->pools[v].slot_bytes,
             "the slots of {} differ between two plans for one memory",
             name_of(static_cast<Value>(v)));
}

int Arena::slot(Value value, int chunk, int micro) const {
  return plan_->slot(value, chunk, micro);
}

std::byte* Arena::at(Value value, int chunk, int micro) const {
  const int number = slot(value, chunk, micro);
  VP_CHECK(number >= 0, "the plan has no slot for {} of chunk {}, micro {}", name_of(value), chunk,
           micro);
  const auto pool = static_cast<size_t>(plan_->pool(value).stored_in);
  return (*slots_)[pool][static_cast<size_t>(number)];
}

size_t Arena::bytes() const {
  size_t bytes = 0;
  for (const Buffer& buffer : *storage_) bytes += buffer.bytes();
  return bytes;
}

}  // namespace voltapile
