#include "transfers.hpp"

#include <map>
#include <tuple>

namespace voltapile {

std::vector<MatchedTransfer> match_transfers(const Trace& trace, const Plan& plan) {
  // (activation or gradient, receiving rank, step, chunk, micro)
  using Key = std::tuple<bool, int, int64_t, int32_t, int32_t>;
  std::map<Key, MatchedTransfer> found;
  const auto rank_of_chunk = [&](int32_t chunk) {
    return plan.chunks[static_cast<size_t>(chunk)].rank;
  };
  for (size_t rank = 0; rank < trace.ranks.size(); ++rank)
    for (const TraceEvent& event : trace.ranks[rank].events) {
      if (event.name >= kOpCount || event.chunk < 1) continue;
      const Op op = static_cast<Op>(event.name);
      const bool activation = op == Op::send_activation || op == Op::receive_activation;
      const bool sends = op == Op::send_activation || op == Op::send_gradient;
      if (!activation && !sends && op != Op::receive_gradient) continue;
      // A transfer is numbered by the chunk that an activation enters; gradients go back from it.
      Coord peer = plan.mesh.coord(static_cast<int>(rank));
      const bool at_the_later_chunk = activation != sends;
      peer.pp = rank_of_chunk(at_the_later_chunk ? event.chunk - 1 : event.chunk);
      const int here = static_cast<int>(rank), there = plan.mesh.rank(peer);
      MatchedTransfer& transfer =
          found[{activation, sends ? there : here, event.step, event.chunk, event.micro}];
      transfer.from = sends ? here : there;
      transfer.to = sends ? there : here;
      (sends ? transfer.send : transfer.receive) = &event;
    }
  std::vector<MatchedTransfer> transfers;
  for (const auto& [key, transfer] : found)
    if (transfer.send != nullptr && transfer.receive != nullptr) transfers.push_back(transfer);
  return transfers;
}

}  // namespace voltapile
