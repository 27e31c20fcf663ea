// What a rehearsal learns from its communicators: how often each was called, and with how much.
#pragma once
#include <array>
#include <cstdint>
#include <string_view>

#include "voltapile/comm/communicator.hpp"

namespace voltapile {

enum class Traffic : uint8_t { all_reduce, reduce_scatter, all_gather, broadcast, send, receive };
inline constexpr int kTrafficCount = static_cast<int>(Traffic::receive) + 1;
std::string_view name_of(Traffic traffic);

// `bytes` is the size of the whole tensor on this rank: the vector of an all_reduce, `in` of a
// reduce_scatter, `out` of an all_gather. What crosses a wire depends on the algorithm, a ring's
// share being (size - 1) / size of it (twice that for all_reduce). Nothing is counted where nothing
// can move: among one rank, and from a rank to itself.
struct TrafficCounts {
  struct Count {
    int64_t calls = 0, bytes = 0;
    bool operator==(const Count&) const = default;
  };
  std::array<Count, kTrafficCount> of{};
  const Count& operator[](Traffic traffic) const { return of[static_cast<size_t>(traffic)]; }
  Count& operator[](Traffic traffic) { return of[static_cast<size_t>(traffic)]; }
};

// Of a communicator that came from make_dry_communicator, or by split_by from one.
const TrafficCounts& traffic_of(const Communicator& dry);

}  // namespace voltapile
