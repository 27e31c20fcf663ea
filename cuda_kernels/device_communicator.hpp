// What nccl and staged have in common: the host's communicator for control, checks, and one rank.
#pragma once
#include <memory>
#include <vector>

#include "voltapile/comm/transport.hpp"

#include "checks.hpp"
#include "context.hpp"

namespace voltapile::cuda {

class DeviceCommunicator : public Communicator {
 public:
  DeviceCommunicator(std::unique_ptr<Communicator> host, Device& device, Context& context)
      : device_(device), context_(context), host_(std::move(host)) {
    name = host_->name;
    place = host_->place;
  }
  int rank() const override { return host_->rank(); }
  int size() const override { return host_->size(); }

  void all_reduce(TensorView t, Reduction op, Stream& stream) override {
    comm::check_tensor(*this, "all_reduce", t);
    if (size() > 1 && t.elements() > 0) reduce_all(t, op, stream);
  }
  void reduce_scatter(TensorView in, TensorView out, Reduction op, Stream& stream) override {
    comm::check_pieces(*this, "reduce_scatter", in, out);
    if (size() == 1) copy(in, out, stream);
    else if (out.elements() > 0) scatter(in, out, op, stream);
  }
  void all_gather(TensorView in, TensorView out, Stream& stream) override {
    comm::check_pieces(*this, "all_gather", out, in);
    if (size() == 1) copy(in, out, stream);
    else if (in.elements() > 0) gather(in, out, stream);
  }
  void broadcast(TensorView t, int root, Stream& stream) override {
    comm::check_tensor(*this, "broadcast", t);
    comm::check_root(*this, root);
    if (size() > 1 && t.elements() > 0) spread(t, root, stream);
  }
  void exchange(std::span<const Transfer> transfers, Stream& stream) override {
    comm::check_transfers(*this, transfers);
    std::vector<Transfer> others;
    std::vector<TensorView> to_self, from_self;
    for (const Transfer& transfer : transfers) {
      if (transfer.tensor.elements() == 0) continue;
      if (transfer.peer != rank()) others.push_back(transfer);
      else (transfer.direction == Direction::send ? to_self : from_self).push_back(transfer.tensor);
    }
    for (size_t i = 0; i < to_self.size(); ++i) {
      VP_CHECK(i < from_self.size() && to_self[i].bytes() == from_self[i].bytes(),
               "exchange of '{}': what rank {} sends itself is not what it receives", name, rank());
      copy(to_self[i], from_self[i], stream);
    }
    if (!others.empty()) swap(others, stream);
  }

  void barrier() override { host().barrier(); }
  std::vector<std::string> gather_text(const std::string& text) override {
    return host().gather_text(text);
  }
  void poll_error() override { host().poll_error(); }
  void abort(const std::string& why) override { host().abort(why); }
  Calls calls() const override { return host_->calls(); }

 protected:
  // The same, of more than one rank and with something to move; no transfer with itself.
  virtual void reduce_all(const TensorView& t, Reduction op, Stream& stream) = 0;
  virtual void scatter(const TensorView& in, const TensorView& out, Reduction op,
                       Stream& stream) = 0;
  virtual void gather(const TensorView& in, const TensorView& out, Stream& stream) = 0;
  virtual void spread(const TensorView& t, int root, Stream& stream) = 0;
  virtual void swap(std::span<const Transfer> transfers, Stream& stream) = 0;

  // Under the names that messages should use now.
  Communicator& host() {
    if (host_->name != name) host_->name = name;
    if (host_->place != place) host_->place = place;
    return *host_;
  }

  Device& device_;
  Context& context_;

 private:
  void copy(const TensorView& in, const TensorView& out, Stream& stream) {
    if (in.data != out.data) device_.copy(out.data, in.data, in.bytes(), stream);
  }

  const std::unique_ptr<Communicator> host_;
};

}  // namespace voltapile::cuda
