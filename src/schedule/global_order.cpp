#include "global_order.hpp"

#include <algorithm>
#include <deque>
#include <optional>

#include "voltapile/base/error.hpp"

#include "shape.hpp"

namespace voltapile {

namespace {

// Nominal costs. Whole numbers: the order must be the same on every rank and machine.
constexpr int64_t kPass = 1000;  // forward, backward_input, backward_weight, recompute
constexpr int64_t kTransfer = 50;
constexpr int64_t kNever = -1;

struct Transfer {
  Instruction send;
  int64_t produced;
};

struct RankState {
  size_t next = 0;  // of its compute program
  int64_t compute_free = 0, in_free = 0, out_free = 0;
  std::deque<Transfer> outgoing;
};

class Player {
 public:
  Player(const std::vector<Program>& compute, const ScheduleShape& shape, bool recompute)
      : compute_(compute), shape_(shape), recompute_(recompute), ranks_(compute.size()) {
    const auto values = static_cast<size_t>(shape.chunks.chunks() * shape.micros);
    activation_.assign(values, kNever);
    gradient_.assign(values, kNever);
    saved_.assign(values, kNever);
    deferred_.assign(values, kNever);
  }

  std::vector<Placed> play() {
    while (step()) {}
    for (size_t rank = 0; rank < ranks_.size(); ++rank)
      if (ranks_[rank].next < compute_[rank].size()) throw_stuck();
    std::stable_sort(placed_.begin(), placed_.end(),
                     [](const Timed& a, const Timed& b) { return a.time < b.time; });
    std::vector<Placed> order;
    order.reserve(placed_.size());
    for (const Timed& timed : placed_) order.push_back(timed.placed);
    return order;
  }

 private:
  struct Timed {
    int64_t time;
    Placed placed;
  };

  size_t index(int chunk, int micro) const {
    return static_cast<size_t>(chunk * shape_.micros + micro);
  }

  // When the operands that another instruction makes are there; kNever: not known yet.
  int64_t ready(const Instruction& i) const {
    const size_t self = index(i.chunk, i.micro);
    switch (i.op) {
      case Op::forward: return i.chunk == 0 ? 0 : activation_[self];
      case Op::backward:
      case Op::backward_input:
        if (saved_[self] == kNever || i.chunk == shape_.chunks.last()) return saved_[self];
        return gradient_[index(i.chunk + 1, i.micro)];
      default: return deferred_[self];
    }
  }

  int64_t duration(Op op) const {
    switch (op) {
      case Op::backward: return recompute_ ? 3 * kPass : 2 * kPass;
      case Op::backward_input: return recompute_ ? 2 * kPass : kPass;
      default: return kPass;
    }
  }

  // Does the earliest thing that can be done; false when there is none. Times never go back.
  bool step() {
    int64_t best = kNever;
    size_t who = 0;
    bool transfer = false;
    const auto offer = [&](int64_t start, size_t rank, bool is_transfer) {
      if (best != kNever && best <= start) return;
      best = start;
      who = rank;
      transfer = is_transfer;
    };
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      const RankState& state = ranks_[rank];
      if (state.outgoing.empty()) continue;
      const Transfer& head = state.outgoing.front();
      const auto peer = static_cast<size_t>(peer_of(head.send, shape_.chunks));
      offer(std::max({head.produced, state.out_free, ranks_[peer].in_free}), rank, true);
    }
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      const RankState& state = ranks_[rank];
      if (state.next == compute_[rank].size()) continue;
      const int64_t operands = ready(compute_[rank][state.next]);
      if (operands != kNever) offer(std::max(operands, state.compute_free), rank, false);
    }
    if (best == kNever) return false;
    transfer ? start_transfer(who, best) : start_compute(who, best);
    return true;
  }

  void start_transfer(size_t rank, int64_t time) {
    const Instruction send = ranks_[rank].outgoing.front().send;
    ranks_[rank].outgoing.pop_front();
    const int peer = peer_of(send, shape_.chunks);
    const bool forward = send.op == Op::send_activation;
    const int64_t end = time + kTransfer;
    ranks_[rank].out_free = ranks_[static_cast<size_t>(peer)].in_free = end;
    (forward ? activation_ : gradient_)[index(send.chunk, send.micro)] = end;
    Instruction receive = send;
    receive.op = forward ? Op::receive_activation : Op::receive_gradient;
    receive.lane = Lane::pipe_in;
    placed_.push_back({time, {static_cast<int>(rank), send}});
    placed_.push_back({time, {peer, receive}});
  }

  void start_compute(size_t rank, int64_t time) {
    RankState& state = ranks_[rank];
    const Instruction done = compute_[rank][state.next++];
    const int64_t end = state.compute_free = time + duration(done.op);
    placed_.push_back({end, {static_cast<int>(rank), done}});
    const size_t self = index(done.chunk, done.micro);
    if (done.op == Op::forward) {
      saved_[self] = end;
      if (done.chunk < shape_.chunks.last())
        pass_on(Op::send_activation, done.chunk + 1, done.chunk + 1, done.micro, rank, end);
    } else if (done.op != Op::backward_weight) {
      deferred_[self] = end;
      if (done.chunk > 0)
        pass_on(Op::send_gradient, done.chunk, done.chunk - 1, done.micro, rank, end);
    }
  }

  void pass_on(Op send, int chunk, int consumer, int micro, size_t rank, int64_t end) {
    if (rank_of(shape_.chunks, consumer) == static_cast<int>(rank)) {
      (send == Op::send_activation ? activation_ : gradient_)[index(chunk, micro)] = end;
      return;
    }
    ranks_[rank].outgoing.push_back(
        {{send, Lane::pipe_out, static_cast<int16_t>(chunk), static_cast<int16_t>(micro)}, end});
  }

  [[noreturn]] void throw_stuck() const {
    std::string message = "the schedule cannot run: its ranks wait for each other";
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      const size_t next = ranks_[rank].next;
      if (next == compute_[rank].size()) continue;
      message += format("\n  rank {}, instruction {}: {} waits for {}", rank, next,
                        show(compute_[rank][next]), missing(compute_[rank][next]));
    }
    throw Error(ExitCode::bad_input, message);
  }

  std::string missing(const Instruction& i) const {
    Instruction wanted = i;
    if (i.op == Op::forward) {
      --wanted.chunk;
      return format("{} on rank {}", show(wanted), rank_of(shape_.chunks, wanted.chunk));
    }
    if (i.op == Op::backward_weight) return format("backward_input({}, {})", i.chunk, i.micro);
    if (saved_[index(i.chunk, i.micro)] == kNever)
      return format("forward({}, {})", i.chunk, i.micro);
    return format("the backward of chunk {}, micro {} on rank {}", i.chunk + 1, i.micro,
                  rank_of(shape_.chunks, i.chunk + 1));
  }

  const std::vector<Program>& compute_;
  const ScheduleShape& shape_;
  const bool recompute_;
  std::vector<RankState> ranks_;
  // When each (chunk, micro) is there for its reader.
  std::vector<int64_t> activation_, gradient_, saved_, deferred_;
  std::vector<Timed> placed_;
};

}  // namespace

std::vector<Placed> global_order(const std::vector<Program>& compute, const ScheduleShape& shape,
                                 bool recompute) {
  return Player(compute, shape, recompute).play();
}

}  // namespace voltapile
