// SEAM 2: ranks talk. Backends: solo, thread, mpi, dry; nccl and staged in cuda_kernels/.
// A size-1 communicator is the identity; nobody asks "is tp > 1?". The host's backends (solo,
// thread, mpi, and staged, which uses them) sum 16-bit types in f32 in rank order and round once,
// so all of them give the same bits. nccl has an order of its own: see transport.hpp.
#pragma once
#include <cstdint>
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

enum class Transport;  // deck.hpp

// Thrown by blocked and later calls after a peer failed or abort() was called: an echo of a
// failure, never its cause. Who prints errors should let the cause's rank speak last.
class PeerFailure : public Error {
 public:
  explicit PeerFailure(const std::string& message) : Error(ExitCode::failure, message) {}
};

enum class Reduction { sum, max, min };
enum class Direction { send, receive };
struct Transfer {
  Direction direction;
  int peer;
  TensorView tensor;
};

// Work that was enqueued keeps what it needs: a communicator may be destroyed before its streams
// are done. Destroyed by an exception in flight, it calls abort(), so that nobody waits for this
// rank; hold it inside the Device's scope, so that this happens before the device waits for its
// lanes.
class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  // Collective. Ranks with one color (>= 0) form a communicator, ordered by key; a negative color
  // gives nullptr.
  virtual std::unique_ptr<Communicator> split(int color, int key) = 0;
  // The same, where every rank can tell everybody's seat. The dry communicator, which has nobody to
  // ask, splits only so.
  struct Seat {
    int color, key;
  };
  virtual std::unique_ptr<Communicator> split_by(const std::function<Seat(int rank)>& seat_of) {
    const Seat mine = seat_of(rank());
    return split(mine.color, mine.key);
  }

  // Every call is asynchronous on `stream`; buffers belong to it until then. All ranks of a
  // communicator must issue the same calls in the same order, from one lane at a time. `name` is
  // what error and watchdog messages call this communicator.
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
  // Calls on the host's memory that this rank has begun and ended, for a watch on another thread.
  // nccl's are not counted.
  struct Calls {
    const char* last = "";
    uint64_t begun = 0, ended = 0;
  };
  virtual Calls calls() const { return {}; }
  // Whether calls on it may be part of Device::repeat.
  virtual bool capturable() const { return size() == 1; }
  virtual void poll_error() {}  // throws when a peer failed
  virtual void abort(
      const std::string& why) = 0;  // makes every rank's blocked and later calls throw
  std::string name = "world";
  std::string place;  // how messages call this rank: "rank 5 (pp1 dp0 tp1)" after make_links
};

// The communicators of one rank, one per axis *and lane*, and one per directed pipeline edge. All
// take the device's memory but `world` and `checkpoint`, which know the host's only.
struct Links {
  std::unique_ptr<Communicator> world;          // control
  std::unique_ptr<Communicator> tensor;         // compute lane: collectives inside layers
  std::unique_ptr<Communicator> tensor_reduce;  // dp lane: gradients of replicated parameters
  std::unique_ptr<Communicator> data;           // dp lane: reduce-scatter, all-gather
  std::unique_ptr<Communicator> norm;           // dp lane: the world again
  std::unique_ptr<Communicator> checkpoint;     // the world again, for the host's saving thread
  // (from pipeline rank, to pipeline rank) -> two ranks, `from` is 0; null where this rank is
  // neither. Activations go from -> to on edges of consecutive chunks, gradients on the edge back.
  std::map<std::pair<int, int>, std::unique_ptr<Communicator>> edges;
};
// Collective. `edges` must be the same sorted list on every rank; `device` must outlive the links.
// All connections are open when it returns.
Links make_links(std::unique_ptr<Communicator> world, const Mesh& mesh,
                 const std::vector<std::pair<int, int>>& edges, Device& device,
                 Transport transport);

std::unique_ptr<Communicator> make_solo();
// A world of any size seen from one rank: counts calls and bytes, moves nothing.
std::unique_ptr<Communicator> make_dry_communicator(int rank, int size);

// Runs f(world communicator) on n threads as n ranks; rethrows the first failure after all have
// ended (the others are aborted).
void spawn_ranks(int n, const std::function<void(std::unique_ptr<Communicator>)>& f);

}  // namespace voltapile
