#include <algorithm>

#include "voltapile/base/error.hpp"
#include "voltapile/schedule/schedule.hpp"

#include "shape.hpp"

namespace voltapile {

namespace {

struct Work {
  int chunk, micro;
};

void append(Program& program, Op op, int chunk, int micro) {
  program.push_back(compute_instruction(op, chunk, micro));
}

// The chunk of each rank, where every rank has one.
std::vector<int> single_chunks(std::string_view name, const ScheduleShape& shape) {
  if (shape.chunks.chunks() != shape.chunks.ranks)
    throw Error(ExitCode::bad_input,
                format("schedule {} takes one chunk per pipeline rank, and there are {} chunks on "
                       "{} ranks: set parallel.chunks = 1, or use interleaved or breadth_first",
                       name, shape.chunks.chunks(), shape.chunks.ranks));
  std::vector<int> chunk_of;
  for (const auto& held : chunks_by_rank(shape.chunks)) chunk_of.push_back(held.front());
  return chunk_of;
}

// Huang et al., "GPipe", 2019; the micro-batches go back in the order in which they came.
std::vector<Program> gpipe(const ScheduleShape& shape) {
  std::vector<Program> programs;
  for (int chunk : single_chunks("gpipe", shape)) {
    Program program;
    for (Op op : {Op::forward, Op::backward})
      for (int micro = 0; micro < shape.micros; ++micro) append(program, op, chunk, micro);
    programs.push_back(std::move(program));
  }
  return programs;
}

// Narayanan et al., "PipeDream", 2019, with a flush: a rank runs ahead by one micro-batch for each
// rank behind it, then alternates.
std::vector<Program> one_f_one_b(const ScheduleShape& shape) {
  std::vector<Program> programs;
  for (int chunk : single_chunks("1f1b", shape)) {
    Program program;
    const int ahead = std::min(shape.chunks.last() - chunk, shape.micros);
    for (int micro = 0; micro < ahead; ++micro) append(program, Op::forward, chunk, micro);
    for (int micro = 0; micro < shape.micros; ++micro) {
      if (micro + ahead < shape.micros) append(program, Op::forward, chunk, micro + ahead);
      append(program, Op::backward, chunk, micro);
    }
    programs.push_back(std::move(program));
  }
  return programs;
}

// Qi et al., "Zero bubble pipeline parallelism", 2023, ZB-H1: 1f1b whose stage s puts weight
// gradients off by s micro-batches. In flight are then (stages - s) + s micro-batches, which is
// what the first stage of 1f1b holds.
std::vector<Program> zero_bubble_h1(const ScheduleShape& shape) {
  std::vector<Program> programs;
  for (int chunk : single_chunks("zero_bubble_h1", shape)) {
    Program program;
    const int ahead = std::min(shape.chunks.last() - chunk, shape.micros);
    const int delay = std::min(chunk, shape.micros);
    for (int micro = 0; micro < ahead; ++micro) append(program, Op::forward, chunk, micro);
    for (int micro = 0; micro < shape.micros; ++micro) {
      if (micro + ahead < shape.micros) append(program, Op::forward, chunk, micro + ahead);
      append(program, Op::backward_input, chunk, micro);
      if (micro >= delay) append(program, Op::backward_weight, chunk, micro - delay);
    }
    for (int micro = shape.micros - delay; micro < shape.micros; ++micro)
      append(program, Op::backward_weight, chunk, micro);
    programs.push_back(std::move(program));
  }
  return programs;
}

// Groups of micro-batches that pass all chunks together: at least `ranks` each (so that the first
// chunk of a round is not waited for), as equal as they can be, larger ones first.
std::vector<int> group_sizes(const ScheduleShape& shape) {
  const int groups = std::max(1, shape.micros / shape.chunks.ranks);
  std::vector<int> sizes(static_cast<size_t>(groups), shape.micros / groups);
  for (int extra = 0; extra < shape.micros % groups; ++extra) ++sizes[static_cast<size_t>(extra)];
  return sizes;
}

// Narayanan et al., "Efficient large-scale language model training on GPU clusters using
// Megatron-LM", 2021, section 2.2, there for micros divisible by ranks. Where a rank has a chunk
// less than others, the schedule is that of the full table with the absent chunks left out.
std::vector<Program> interleaved(const ScheduleShape& shape) {
  if (!is_cyclic(shape.chunks))
    throw Error(ExitCode::bad_input,
                "schedule interleaved takes chunks placed cyclically (chunk c on rank c mod "
                "ranks): use breadth_first or a schedule file for another placement");
  const int ranks = shape.chunks.ranks;
  const int rounds = (shape.chunks.chunks() + ranks - 1) / ranks;
  if (rounds == 1) return one_f_one_b(shape);
  const std::vector<int> groups = group_sizes(shape);
  std::vector<Program> programs;
  for (int rank = 0; rank < ranks; ++rank) {
    std::vector<Work> forward, backward;
    int begin = 0;
    for (int size : groups) {
      for (int round = 0; round < rounds; ++round)
        for (int micro = begin; micro < begin + size; ++micro) {
          forward.push_back({round * ranks + rank, micro});
          backward.push_back({(rounds - 1 - round) * ranks + rank, micro});
        }
      begin += size;
    }
    const size_t ahead =
        std::min(forward.size(),
                 static_cast<size_t>((ranks - rank - 1) * 2 + (rounds - 1) * groups.front()));
    Program program;
    const auto add = [&](Op op, const Work& work) {
      if (work.chunk < shape.chunks.chunks()) append(program, op, work.chunk, work.micro);
    };
    for (size_t i = 0; i < ahead; ++i) add(Op::forward, forward[i]);
    for (size_t i = 0; i < backward.size(); ++i) {
      if (i + ahead < forward.size()) add(Op::forward, forward[i + ahead]);
      add(Op::backward, backward[i]);
    }
    programs.push_back(std::move(program));
  }
  return programs;
}

// Lamy-Poirier, "Breadth-first pipeline parallelism", 2022. Works for any placement: chunk by chunk
// is an order of the whole model.
std::vector<Program> breadth_first(const ScheduleShape& shape) {
  std::vector<Program> programs;
  for (const auto& held : chunks_by_rank(shape.chunks)) {
    Program program;
    for (int chunk : held)
      for (int micro = 0; micro < shape.micros; ++micro) append(program, Op::forward, chunk, micro);
    for (auto chunk = held.rbegin(); chunk != held.rend(); ++chunk)
      for (int micro = 0; micro < shape.micros; ++micro)
        append(program, Op::backward, *chunk, micro);
    programs.push_back(std::move(program));
  }
  return programs;
}

struct Builder {
  std::string_view name;
  std::vector<Program> (*build)(const ScheduleShape&);
};
constexpr Builder kBuilders[] = {{"gpipe", gpipe},
                                 {"1f1b", one_f_one_b},
                                 {"interleaved", interleaved},
                                 {"breadth_first", breadth_first},
                                 {"zero_bubble_h1", zero_bubble_h1}};

}  // namespace

const std::vector<std::string>& schedule_names() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> list;
    for (const Builder& builder : kBuilders) list.emplace_back(builder.name);
    return list;
  }();
  return names;
}

std::vector<Program> build(std::string_view name, const ScheduleShape& shape) {
  check_shape(shape);
  for (const Builder& builder : kBuilders)
    if (builder.name == name) return builder.build(shape);
  throw Error(ExitCode::bad_input, format("no schedule is called \"{}\": there are {}", name,
                                          join(schedule_names(), ", ")));
}

// Groups of `ranks` micro-batches: as little idle time as breadth-first, while few boundary
// activations wait for their next chunk.
std::vector<Program> build_forward_only(const ScheduleShape& shape) {
  check_shape(shape);
  std::vector<Program> programs;
  for (const auto& held : chunks_by_rank(shape.chunks)) {
    Program program;
    for (int begin = 0; begin < shape.micros; begin += shape.chunks.ranks) {
      const int end = std::min(begin + shape.chunks.ranks, shape.micros);
      for (int chunk : held)
        for (int micro = begin; micro < end; ++micro) append(program, Op::forward, chunk, micro);
    }
    programs.push_back(std::move(program));
  }
  return programs;
}

}  // namespace voltapile
