#include <algorithm>

#include "voltapile/comm/communicator.hpp"
#include "voltapile/comm/transport.hpp"

namespace voltapile {
namespace {

std::string text_of(const std::pair<int, int>& edge) {
  return format("edge {}->{}", edge.first, edge.second);
}

}  // namespace

Links make_links(std::unique_ptr<Communicator> world, const Mesh& mesh,
                 const std::vector<std::pair<int, int>>& edges, Device& device,
                 Transport transport) {
  VP_CHECK(world->size() == mesh.size(), "{} ranks for a mesh of {}", world->size(), mesh.text());
  for (size_t i = 0; i < edges.size(); ++i) {
    const auto [from, to] = edges[i];
    VP_CHECK(from != to && 0 <= from && from < mesh.pp && 0 <= to && to < mesh.pp,
             "{} on a pipeline of {} ranks", text_of(edges[i]), mesh.pp);
    VP_CHECK(i == 0 || edges[i - 1] < edges[i], "{} comes after {}: the list must be sorted",
             text_of(edges[i]), text_of(edges[i - 1]));
  }
  const Coord here = mesh.coord(world->rank());
  world->place = mesh.rank_text(world->rank());
  const auto split_on_host = [&](const std::string& name, auto seat_of) {
    auto part = world->split_by(seat_of);
    if (part != nullptr) part->name = name;
    return part;
  };
  const auto split = [&](const std::string& name, auto seat_of) {
    auto part = split_on_host(name, seat_of);
    return part == nullptr ? nullptr : on_device(std::move(part), device, transport);
  };
  using Seat = Communicator::Seat;

  const auto along_tensor = [mesh](int rank) {
    const Coord c = mesh.coord(rank);
    return Seat{c.pp * mesh.dp + c.dp, c.tp};
  };
  const auto along_data = [mesh](int rank) {
    const Coord c = mesh.coord(rank);
    return Seat{c.pp * mesh.tp + c.tp, c.dp};
  };
  Links links;
  const std::string tensor_line = format("(pp{} dp{})", here.pp, here.dp);
  links.tensor = split("tp" + tensor_line, along_tensor);
  links.tensor_reduce = split("tp reduce" + tensor_line, along_tensor);
  links.data = split(format("dp(pp{} tp{})", here.pp, here.tp), along_data);
  const auto all = [](int rank) { return Seat{0, rank}; };
  links.norm = split("norm", all);
  links.checkpoint = split_on_host("checkpoint", all);
  for (const auto& edge : edges) {
    links.edges[edge] =
        split(text_of(edge) + format(" (dp{} tp{})", here.dp, here.tp), [mesh, edge](int rank) {
          const Coord c = mesh.coord(rank);
          const bool on_edge = c.pp == edge.first || c.pp == edge.second;
          return Seat{on_edge ? c.dp * mesh.tp + c.tp : -1, c.pp == edge.first ? 0 : 1};
        });
  }
  links.world = std::move(world);
  open_connections(links, device);
  return links;
}

}  // namespace voltapile
