#include "voltapile/trace/event.hpp"

#include <cstring>
#include <type_traits>

#include "voltapile/base/error.hpp"

namespace voltapile {

std::string_view event_name(int32_t name) {
  VP_CHECK(0 <= name && name < kEventNames, "event name {}", name);
  if (name < kOpCount) return name_of(static_cast<Op>(name));
  switch (static_cast<HostWork>(name)) {
    case HostWork::data_wait: return "data_wait";
    case HostWork::issue: return "issue";
    case HostWork::step_wait: return "step_wait";
    case HostWork::evaluate: return "evaluate";
    case HostWork::save: return "save";
    case HostWork::publish: return "publish_trace";
    case HostWork::step: break;
  }
  return "step";
}

std::string_view event_lane(int32_t lane) {
  VP_CHECK(0 <= lane && lane < kEventLanes, "lane {}", lane);
  return lane == kMainLane ? "main" : name_of(static_cast<Lane>(lane));
}

namespace {

class Packer {
 public:
  template <class T>
  void put(const T& value) {
    static_assert(std::is_trivially_copyable_v<T>);
    append(&value, sizeof value);
  }
  void put(const std::string& text) {
    put(text.size());
    append(text.data(), text.size());
  }
  template <class T>
  void put_all(const std::vector<T>& values) {
    put(values.size());
    static_assert(std::is_trivially_copyable_v<T>);
    append(values.data(), values.size() * sizeof(T));
  }
  std::vector<std::byte> take() { return std::move(bytes_); }

 private:
  void append(const void* data, size_t size) {
    const auto* begin = static_cast<const std::byte*>(data);
    bytes_.insert(bytes_.end(), begin, begin + size);
  }
  std::vector<std::byte> bytes_;
};

class Unpacker {
 public:
  explicit Unpacker(const std::vector<std::byte>& bytes) : bytes_(bytes) {}
  template <class T>
  T get() {
    T value;
    take(&value, sizeof value);
    return value;
  }
  std::string text() {
    std::string text(length(1), '\0');
    take(text.data(), text.size());
    return text;
  }
  template <class T>
  std::vector<T> all() {
    std::vector<T> values(length(sizeof(T)));
    take(values.data(), values.size() * sizeof(T));
    return values;
  }
  size_t length(size_t each) {
    const auto count = get<size_t>();
    VP_CHECK(count <= (bytes_.size() - at_) / each, "a record of {} bytes is cut short",
             bytes_.size());
    return count;
  }
  bool done() const { return at_ == bytes_.size(); }

 private:
  void take(void* data, size_t size) {
    VP_CHECK(size <= bytes_.size() - at_, "a record of {} bytes is cut short", bytes_.size());
    if (size > 0) std::memcpy(data, bytes_.data() + at_, size);
    at_ += size;
  }
  const std::vector<std::byte>& bytes_;
  size_t at_ = 0;
};

}  // namespace

std::vector<std::byte> pack(const RankRecord& record) {
  Packer packer;
  packer.put(record.place);
  packer.put(record.host);
  packer.put(record.device);
  packer.put(record.clock_skew_ns);
  packer.put_all(record.events);
  packer.put(record.memory.size());
  for (const MemoryRow& row : record.memory) {
    packer.put(row.time_ns);
    packer.put(row.name);
    packer.put(row.bytes);
    packer.put(row.on_host);
  }
  packer.put_all(record.samples);
  packer.put_all(record.gpu_samples);
  return packer.take();
}

RankRecord unpack(const std::vector<std::byte>& bytes) {
  Unpacker unpacker(bytes);
  RankRecord record;
  record.place = unpacker.text();
  record.host = unpacker.text();
  record.device = unpacker.text();
  record.clock_skew_ns = unpacker.get<int64_t>();
  record.events = unpacker.all<TraceEvent>();
  record.memory.resize(unpacker.length(1));
  for (MemoryRow& row : record.memory) {
    row.time_ns = unpacker.get<int64_t>();
    row.name = unpacker.text();
    row.bytes = unpacker.get<int64_t>();
    row.on_host = unpacker.get<int32_t>();
  }
  record.samples = unpacker.all<HostSample>();
  record.gpu_samples = unpacker.all<GpuSample>();
  VP_CHECK(unpacker.done(), "a record of {} bytes is too long", bytes.size());
  return record;
}

}  // namespace voltapile
