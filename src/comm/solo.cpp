#include "endpoint.hpp"

namespace voltapile {
namespace {

// Alone: HostCommunicator never asks it for a collective.
class SoloEndpoint final : public comm::Endpoint {
 public:
  SoloEndpoint() : Endpoint(0, 1) {}
  void all_reduce(const TensorView&, Reduction) override {}
  void reduce_scatter(const TensorView&, const TensorView&, Reduction) override {}
  void all_gather(const TensorView&, const TensorView&) override {}
  void broadcast(const TensorView&, int) override {}
  void exchange(std::span<const Transfer>) override {}
  void barrier() override {}
  std::vector<std::string> gather_text(const std::string& text) override { return {text}; }
  std::shared_ptr<Endpoint> split(int color, int) override {
    return color < 0 ? nullptr : std::make_shared<SoloEndpoint>();
  }
  void abort(const std::string& why) override {
    const std::lock_guard lock(mutex_);
    if (why_.empty()) why_ = why;
  }
  void throw_if_lost() override {
    const std::lock_guard lock(mutex_);
    if (!why_.empty()) throw PeerFailure(format("{} was given up: {}", label(), why_));
  }

 private:
  std::mutex mutex_;
  std::string why_;
};

}  // namespace

std::unique_ptr<Communicator> make_solo() {
  return comm::make_communicator(std::make_shared<SoloEndpoint>());
}

}  // namespace voltapile
