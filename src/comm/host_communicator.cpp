#include <exception>
#include <utility>

#include "arithmetic.hpp"
#include "checks.hpp"
#include "endpoint.hpp"

namespace voltapile::comm {
namespace {

class HostCommunicator final : public Communicator {
 public:
  explicit HostCommunicator(std::shared_ptr<Endpoint> endpoint)
      : endpoint_(std::move(endpoint)), exceptions_at_birth_(std::uncaught_exceptions()) {
    place = format("rank {} of {}", endpoint_->rank(), endpoint_->size());
  }

  ~HostCommunicator() override {
    if (std::uncaught_exceptions() > exceptions_at_birth_)
      endpoint_->abort(format("{} failed; its own message says why", place));
  }

  int rank() const override { return endpoint_->rank(); }
  int size() const override { return endpoint_->size(); }

  std::unique_ptr<Communicator> split(int color, int key) override {
    const auto turn = take_turn("split");
    auto part = endpoint_->split(color, key);
    if (part == nullptr) return nullptr;
    auto result = make_communicator(std::move(part));
    result->name = format("{}/{}", name, color);
    result->place = place;
    return result;
  }

  void all_reduce(TensorView t, Reduction op, Stream& stream) override {
    check_tensor(*this, "all_reduce", t);
    if (size() == 1) return;
    enqueue("all_reduce", stream, [t, op](Endpoint& end) { end.all_reduce(t, op); });
  }

  void reduce_scatter(TensorView in, TensorView out, Reduction op, Stream& stream) override {
    check_pieces(*this, "reduce_scatter", in, out);
    if (size() == 1) return copy(in, out, stream);
    enqueue("reduce_scatter", stream,
            [in, out, op](Endpoint& end) { end.reduce_scatter(in, out, op); });
  }

  void all_gather(TensorView in, TensorView out, Stream& stream) override {
    check_pieces(*this, "all_gather", out, in);
    if (size() == 1) return copy(in, out, stream);
    enqueue("all_gather", stream, [in, out](Endpoint& end) { end.all_gather(in, out); });
  }

  void broadcast(TensorView t, int root, Stream& stream) override {
    check_tensor(*this, "broadcast", t);
    check_root(*this, root);
    if (size() == 1) return;
    enqueue("broadcast", stream, [t, root](Endpoint& end) { end.broadcast(t, root); });
  }

  void exchange(std::span<const Transfer> transfers, Stream& stream) override {
    check_transfers(*this, transfers);
    std::vector<Transfer> others;
    std::vector<TensorView> to_self, from_self;
    for (const Transfer& transfer : transfers) {
      if (transfer.peer != rank()) others.push_back(transfer);
      else (transfer.direction == Direction::send ? to_self : from_self).push_back(transfer.tensor);
    }
    for (size_t i = 0; i < to_self.size(); ++i) {
      VP_CHECK(to_self[i].bytes() == from_self[i].bytes(),
               "exchange of '{}': rank {} sends itself {} and receives {}", name, rank(),
               to_self[i].shape.text(), from_self[i].shape.text());
      copy(to_self[i], from_self[i], stream);
    }
    if (others.empty()) return;
    enqueue("exchange", stream,
            [others = std::move(others)](Endpoint& end) { end.exchange(others); });
  }

  void barrier() override {
    const auto turn = take_turn("barrier");
    endpoint_->barrier();
  }

  std::vector<std::string> gather_text(const std::string& text) override {
    const auto turn = take_turn("gather_text");
    return endpoint_->gather_text(text);
  }

  void poll_error() override { endpoint_->throw_if_lost(); }
  void abort(const std::string& why) override { endpoint_->abort(why); }
  Calls calls() const override { return endpoint_->calls(); }

 private:
  template <class Work>
  void enqueue(const char* call, Stream& stream, Work work) {
    endpoint_->set_label(name, place);
    stream.run_on_host([endpoint = endpoint_, call, work = std::move(work)] {
      const Endpoint::Turn turn(*endpoint, call);
      work(*endpoint);
    });
  }

  static void copy(const TensorView& in, const TensorView& out, Stream& stream) {
    if (in.data == out.data || in.elements() == 0) return;
    stream.run_on_host([in, out] { copy_bytes(out.data, in.data, in.bytes()); });
  }

  Endpoint::Turn take_turn(const char* call) {
    endpoint_->set_label(name, place);
    return Endpoint::Turn(*endpoint_, call);
  }

  const std::shared_ptr<Endpoint> endpoint_;
  const int exceptions_at_birth_;
};

}  // namespace

std::string Endpoint::label() const {
  const char* call = call_.load();
  const std::lock_guard lock(mutex_);
  return format("{} of '{}' on {}", call == nullptr ? "use" : call, name_, place_);
}

void Endpoint::set_label(const std::string& name, const std::string& place) {
  const std::lock_guard lock(mutex_);
  if (name_ != name) name_ = name;
  if (place_ != place) place_ = place;
}

Endpoint::Turn::Turn(Endpoint& endpoint, const char* call) : endpoint_(endpoint) {
  const char* other = nullptr;
  VP_CHECK(endpoint.call_.compare_exchange_strong(other, call),
           "{} while {} is still running: one communicator, one lane at a time", call,
           endpoint.label());
  try {
    endpoint.throw_if_lost();
  } catch (...) {
    endpoint.call_.store(nullptr);
    throw;
  }
  endpoint.last_.store(call);
  endpoint.begun_.fetch_add(1);
}

std::unique_ptr<Communicator> make_communicator(std::shared_ptr<Endpoint> endpoint) {
  return std::make_unique<HostCommunicator>(std::move(endpoint));
}

}  // namespace voltapile::comm
