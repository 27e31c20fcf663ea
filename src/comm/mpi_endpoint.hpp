// One rank's end of an MPI communicator. All payload goes by nonblocking point-to-point messages:
// MPI's own collectives would spin, and would sum in an order of their own.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "arithmetic.hpp"
#include "mpi_context.hpp"

namespace voltapile::comm {

class MpiEndpoint final : public Endpoint {
 public:
  // Takes over `comm`, unless making the endpoint throws.
  static std::shared_ptr<Endpoint> adopt(std::shared_ptr<MpiContext> context, MPI_Comm comm);
  MpiEndpoint(std::shared_ptr<MpiContext> context, MPI_Comm comm, int rank, int size);
  ~MpiEndpoint() override;

  void all_reduce(const TensorView& t, Reduction op) override;
  void reduce_scatter(const TensorView& in, const TensorView& out, Reduction op) override;
  void all_gather(const TensorView& in, const TensorView& out) override;
  void broadcast(const TensorView& t, int root) override;
  void exchange(std::span<const Transfer> transfers) override;
  void barrier() override;
  std::vector<std::string> gather_text(const std::string& text) override;
  std::shared_ptr<Endpoint> split(int color, int key) override;
  void abort(const std::string& why) override { context_->abort(why); }
  void throw_if_lost() override { context_->throw_if_lost(*this); }

 private:
  // Messages of one kind between two ranks arrive in the order sent; a tag a kind keeps calls that
  // talk to different peers, or in different directions, from meeting each other's messages.
  enum class Tag { whole = 1, piece, gather, broadcast, exchange, barrier, text };
  struct Batch;  // requests in flight

  void send(Batch& batch, const std::byte* data, size_t bytes, int peer, Tag tag);
  void receive(Batch& batch, std::byte* data, size_t bytes, int peer, Tag tag);
  void finish(Batch& batch);
  // Every rank p gets its piece, `piece_at(p)` of `data`, reduced into `out`.
  void reduce_pieces(const std::byte* data, std::byte* out, DType dtype, Reduction op,
                     const std::function<Range(int rank)>& piece_at);
  void reduce_whole(const TensorView& t, Reduction op);
  int peer_after(int step) const { return (rank() + step) % size(); }
  int peer_before(int step) const { return (rank() - step + size()) % size(); }

  const std::shared_ptr<MpiContext> context_;
  MPI_Comm comm_;
  std::vector<std::byte> scratch_;  // grows to the largest need, then stays
  std::vector<const std::byte*> inputs_;
};

}  // namespace voltapile::comm
