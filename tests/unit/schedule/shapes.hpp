// The grid of shapes on which schedules are tested: a seeded sample, all of it with
// VOLTAPILE_FULL=1. AddressSanitizer, under which each takes fifteen times as long, sees fewer:
// what it finds lies in the code, which few shapes run through.
#pragma once
#include <cstdlib>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "voltapile/schedule/schedule.hpp"

namespace voltapile {

inline bool takes_one_chunk(std::string_view schedule) {
  return schedule != "interleaved" && schedule != "breadth_first";
}

inline std::vector<ScheduleShape> shape_grid(std::string_view schedule) {
  const int most_chunks = takes_one_chunk(schedule) ? 1 : 5;
  std::vector<ScheduleShape> shapes;
  for (int ranks = 1; ranks <= 6; ++ranks)
    for (int held = 1; held <= most_chunks; ++held)
      for (int micros = 1; micros <= 16; ++micros)
        shapes.push_back({cyclic_chunks(ranks, held), micros});
  const char* full = std::getenv("VOLTAPILE_FULL");
  if (full && std::string_view(full) == "1") return shapes;
#if defined(__SANITIZE_ADDRESS__)
  constexpr size_t kSample = 20;
#else
  constexpr size_t kSample = 60;
#endif
  std::mt19937 random(20231);
  for (size_t i = 0; i < std::min(kSample, shapes.size()); ++i)
    std::swap(shapes[i], shapes[i + random() % (shapes.size() - i)]);
  if (shapes.size() > kSample) shapes.resize(kSample);
  return shapes;
}

inline std::string show(std::string_view schedule, const ScheduleShape& shape) {
  return std::string(schedule) + ", " + std::to_string(shape.chunks.ranks) + " ranks, " +
         std::to_string(shape.chunks.chunks()) + " chunks, " + std::to_string(shape.micros) +
         " micros";
}

inline std::vector<Program> lowered(std::string_view schedule, const ScheduleShape& shape,
                                    const LowerOptions& options = {}) {
  return lower(build(schedule, shape), shape, options);
}

}  // namespace voltapile
