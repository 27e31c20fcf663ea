#include "voltapile/tensor/arena.hpp"

#include <numeric>

#include "voltapile/base/error.hpp"
#include "voltapile/base/units.hpp"

namespace voltapile {
namespace {

size_t bytes_of(const ValuePool& pool) {
  return std::accumulate(pool.slot_bytes.begin(), pool.slot_bytes.end(), size_t{0});
}

// Which pools this rank holds where one more was refused, and which were to come.
std::string report(const BufferPlan& buffers, const ValuePool& refused) {
  std::string held, missing;
  bool reached = false;
  for (const ValuePool& pool : buffers.pools) {
    reached |= &pool == &refused;
    if (pool.home != refused.home || bytes_of(pool) == 0) continue;
    std::string& list = reached ? missing : held;
    list += format("{}{} {}", list.empty() ? "" : ", ", name_of(pool.value),
                   show_bytes(static_cast<double>(bytes_of(pool))));
  }
  return format("; this rank held {}, and needs {}; `voltapile plan` names the keys that take less",
                held.empty() ? "nothing yet" : held, missing);
}

}  // namespace

Arena::Arena(Device& device, const BufferPlan& buffers, ThreadPool& host) : plan_(&buffers) {
  Pools pools;
  std::vector<Buffer> storage;
  for (const ValuePool& pool : buffers.pools) {
    const size_t bytes = bytes_of(pool);
    std::byte* next = nullptr;
    if (bytes > 0) {
      const std::string_view what = name_of(pool.value);
      try {
        storage.push_back(pool.home == Home::device    ? device.allocate(bytes, what)
                          : pool.value == Value::state ? device.allocate_compute(bytes, what, host)
                                                       : device.allocate_host(bytes, what));
      } catch (const Error& error) {
        if (error.code() != ExitCode::does_not_fit) throw;
        throw Error(error.code(), std::string(error.what()) + report(buffers, pool));
      }
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
