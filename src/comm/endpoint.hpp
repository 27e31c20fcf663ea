// One rank's end of a communicator, as its lanes see it: every call blocks until it is done.
#pragma once
#include <atomic>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "voltapile/comm/communicator.hpp"

namespace voltapile::comm {

// Arguments have been checked, and size() > 1 for all but the host's calls. Shared by the
// communicator and the work it enqueued.
class Endpoint {
 public:
  Endpoint(int rank, int size) : rank_(rank), size_(size) {}
  virtual ~Endpoint() = default;
  Endpoint(const Endpoint&) = delete;
  Endpoint& operator=(const Endpoint&) = delete;
  int rank() const { return rank_; }
  int size() const { return size_; }

  virtual void all_reduce(const TensorView& t, Reduction op) = 0;
  virtual void reduce_scatter(const TensorView& in, const TensorView& out, Reduction op) = 0;
  virtual void all_gather(const TensorView& in, const TensorView& out) = 0;
  virtual void broadcast(const TensorView& t, int root) = 0;
  virtual void exchange(std::span<const Transfer> transfers) = 0;  // none with itself
  virtual void barrier() = 0;
  virtual std::vector<std::string> gather_text(const std::string& text) = 0;
  virtual std::shared_ptr<Endpoint> split(int color, int key) = 0;  // null for a negative color
  virtual void abort(const std::string& why) = 0;
  virtual void throw_if_lost() = 0;  // PeerFailure

  // "all_reduce of 'tp(pp1 dp0)' on rank 5 (pp1 dp0 tp1)", for messages.
  std::string label() const;
  void set_label(const std::string& name, const std::string& place);

  Communicator::Calls calls() const {
    const uint64_t ended = ended_.load();  // first: never more than have begun
    return {last_.load(), begun_.load(), ended};
  }

  // Held during a call: refuses it after a failure, finds use from two lanes at once, and gives
  // label() its call.
  class Turn {
   public:
    Turn(Endpoint& endpoint, const char* call);
    ~Turn() {
      endpoint_.call_.store(nullptr);
      endpoint_.ended_.fetch_add(1);
    }
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;

   private:
    Endpoint& endpoint_;
  };

 private:
  const int rank_, size_;
  std::atomic<const char*> call_{nullptr}, last_{""};
  std::atomic<uint64_t> begun_{0}, ended_{0};
  mutable std::mutex mutex_;  // guards the two names
  std::string name_ = "world", place_;
};

// The communicator of the host backends: checks, enqueues, and hands to its endpoint.
std::unique_ptr<Communicator> make_communicator(std::shared_ptr<Endpoint> endpoint);

}  // namespace voltapile::comm
