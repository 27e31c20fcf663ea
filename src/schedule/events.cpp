#include "events.hpp"

#include <algorithm>
#include <map>
#include <utility>

#include "voltapile/base/error.hpp"

#include "shape.hpp"

namespace voltapile {

namespace {

struct EdgeEnds {
  std::vector<ProgramPlace> sends, receives;
};

// What is sent, whichever end names it.
bool same_transfer(const Instruction& send, const Instruction& receive) {
  const bool activation = send.op == Op::send_activation;
  return activation == (receive.op == Op::receive_activation) && send.chunk == receive.chunk &&
         send.micro == receive.micro;
}

}  // namespace

std::string show(const std::vector<Program>& programs, ProgramPlace place) {
  const Program& program = programs[static_cast<size_t>(place.rank)];
  return format("rank {}, position {}, {}", place.rank, place.position,
                show(program[static_cast<size_t>(place.position)]));
}

bool is_training(const std::vector<Program>& programs) {
  for (const Program& program : programs)
    for (const Instruction& i : program)
      if (is_backward(i.op) || i.op == Op::reduce_gradients || i.op == Op::norm ||
          i.op == Op::update)
        return true;
  return false;
}

Events match_events(const std::vector<Program>& programs, const ScheduleShape& shape) {
  Events events;
  std::map<std::pair<int, int>, EdgeEnds> edges;  // (from, to)
  std::vector<std::vector<ProgramPlace>> norms;
  const auto instruction = [&](ProgramPlace p) -> const Instruction& {
    return programs[static_cast<size_t>(p.rank)][static_cast<size_t>(p.position)];
  };
  const auto add = [&](std::vector<ProgramPlace> members) {
    for (const ProgramPlace& p : members)
      events.of[static_cast<size_t>(p.rank)][static_cast<size_t>(p.position)] =
          static_cast<int>(events.list.size());
    events.list.push_back({std::move(members)});
  };
  for (const Program& program : programs) events.of.emplace_back(program.size(), -1);
  for (int rank = 0; rank < static_cast<int>(programs.size()); ++rank) {
    size_t norm = 0;
    for (int position = 0; position < static_cast<int>(programs[static_cast<size_t>(rank)].size());
         ++position) {
      const ProgramPlace place{rank, position};
      const Instruction& i = instruction(place);
      if (is_send(i.op)) {
        edges[{rank, peer_of(i, shape.chunks)}].sends.push_back(place);
      } else if (is_receive(i.op)) {
        edges[{peer_of(i, shape.chunks), rank}].receives.push_back(place);
      } else if (i.op == Op::norm) {
        if (norms.size() == norm) norms.emplace_back();
        norms[norm++].push_back(place);
      } else {
        add({place});
      }
    }
  }
  for (const auto& [edge, ends] : edges) {
    const size_t common = std::min(ends.sends.size(), ends.receives.size());
    for (size_t k = 0; k < common; ++k) {
      if (!same_transfer(instruction(ends.sends[k]), instruction(ends.receives[k])))
        throw Error(ExitCode::failure,
                    format("transfer {} from rank {} to rank {} is not the same on both: {}; {}", k,
                           edge.first, edge.second, show(programs, ends.sends[k]),
                           show(programs, ends.receives[k])));
      add({ends.sends[k], ends.receives[k]});
    }
    if (ends.sends.size() != ends.receives.size())
      throw Error(ExitCode::failure,
                  format("from rank {} to rank {} there are {} sends and {} receives; alone: {}",
                         edge.first, edge.second, ends.sends.size(), ends.receives.size(),
                         show(programs, common < ends.sends.size() ? ends.sends[common]
                                                                   : ends.receives[common])));
  }
  for (auto& norm : norms) {
    if (norm.size() != programs.size())
      throw Error(ExitCode::failure,
                  format("a norm is of all {} ranks, and {} take part in that of {}",
                         programs.size(), norm.size(), show(programs, norm.front())));
    add(std::move(norm));
  }
  return events;
}

}  // namespace voltapile
