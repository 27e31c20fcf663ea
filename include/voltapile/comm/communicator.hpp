// SEAM 2: ranks talk. Backends: solo, thread, mpi, dry; nccl and staged in cuda_kernels/.
// A size-1 communicator is the identity; nobody asks "is tp > 1?". Reductions of 16-bit types are
// summed in f32 in rank order and rounded once, so thread and mpi give the same bits.
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "voltapile/base/tensor_view.hpp"
#include "voltapile/device/device.hpp"
#include "voltapile/mesh/mesh.hpp"

namespace voltapile {

enum class Reduction { sum, max, min };
enum class Direction { send, receive };
struct Transfer {
  Direction direction;
  int peer;
  TensorView tensor;
};

class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  // Collective. Ranks with one color (>= 0) form a communicator, ordered by key; a negative color
  // gives nullptr.
  virtual std::unique_ptr<Communicator> split(int color, int key) = 0;

  // Every call is asynchronous on `stream`; buffers belong to it until then. All ranks of a
  // communicator must issue the same calls in the same order. `name` is what error and watchdog
  // messages call this communicator.
  virtual void all_reduce(TensorView t, Reduction op, Stream& stream) = 0;  // in place
  virtual void reduce_scatter(TensorView in, TensorView out, Reduction op,
                              Stream& stream) = 0;  // in: size * out, flat;
                                                    // out may be the rank's own piece of `in`
  virtual void all_gather(TensorView in, TensorView out,
                          Stream& stream) = 0;  // out: size * in; in may be its own piece
  virtual void broadcast(TensorView t, int root, Stream& stream) = 0;
  // The only point-to-point call; groups what is ready together. Peers match in order.
  virtual void exchange(std::span<const Transfer> transfers, Stream& stream) = 0;

  // Host-side, blocking: start-up, shutdown and control only.
  virtual void barrier() = 0;
  virtual std::vector<std::string> gather_text(
      const std::string& text) = 0;  // everybody gets everybody's
  virtual bool capturable() const { return false; }
  virtual void poll_error() {}  // throws when a peer failed
  virtual void abort(
      const std::string& why) = 0;  // makes every rank's blocked and later calls throw
  std::string name = "world";
};

// The communicators of one rank, one per axis *and lane*, and one per directed pipeline edge.
struct Links {
  std::unique_ptr<Communicator> world;
  std::unique_ptr<Communicator> tensor;         // compute lane: collectives inside layers
  std::unique_ptr<Communicator> tensor_reduce;  // dp lane: gradients of replicated parameters
  std::unique_ptr<Communicator> data;           // dp lane: reduce-scatter, all-gather
  std::unique_ptr<Communicator> norm;           // dp lane: the world again
  // (from pipeline rank, to pipeline rank) -> two ranks, `from` is 0; null where this rank is
  // neither. Activations go from -> to on edges of consecutive chunks, gradients on the edge back.
  std::map<std::pair<int, int>, std::unique_ptr<Communicator>> edges;
};
// Collective. `edges` must be the same sorted list on every rank.
Links make_links(std::unique_ptr<Communicator> world, const Mesh& mesh,
                 const std::vector<std::pair<int, int>>& edges);

std::unique_ptr<Communicator> make_solo();
// A world of any size seen from one rank: counts calls and bytes, moves nothing.
std::unique_ptr<Communicator> make_dry_communicator(int rank, int size);

// Runs f(world communicator) on n threads as n ranks; rethrows the first failure after all have
// ended (the others are aborted).
void spawn_ranks(int n, const std::function<void(std::unique_ptr<Communicator>)>& f);

}  // namespace voltapile
