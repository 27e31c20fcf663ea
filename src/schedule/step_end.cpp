#include "step_end.hpp"

#include <algorithm>

#include "homes.hpp"
#include "shape.hpp"

namespace voltapile {
namespace {

// Backward with recomputation takes three times as long as forward. An optimizer on the host that
// takes as long as both keeps up when it puts off each fourth chunk; those follow while the next
// forward works its way up to them.
constexpr size_t kPutOff = 4;

class StepEnd {
 public:
  StepEnd(const Program& program, const ScheduleShape& shape, const LowerOptions& options)
      : homes_(shape.homes),
        gathers_(options.gather_shards),
        early_(shape.early_updates && homes_.optimizer != Home::device),
        norm_is_last_(shape.early_updates) {
    for (const Instruction& i : program)
      if (i.op == Op::forward && !has(forward_order_, i.chunk)) forward_order_.push_back(i.chunk);
    for (size_t i = program.size(); i-- > 0;)
      if (is_backward(program[i].op) && !has(whole_order_, program[i].chunk)) {
        whole_order_.push_back(program[i].chunk);
        last_backwards_.push_back(i);
      }
    std::reverse(whole_order_.begin(), whole_order_.end());
    std::reverse(last_backwards_.begin(), last_backwards_.end());
    plan_updates();
  }

  Program apply(const Program& program) {
    auto last = last_backwards_.begin();
    for (size_t i = 0; i < program.size(); ++i) {
      result_.push_back(program[i]);
      if (last == last_backwards_.end() || i != *last) continue;
      ++last;
      const int chunk = program[i].chunk;
      add(Op::reduce_gradients, Lane::dp, chunk);
      if (homes_.optimizer != Home::device) add(Op::offload_gradients, Lane::d2h, chunk);
      if (early_ && !is_put_off(chunk)) update_next();
    }
    if (!norm_is_last_) add(Op::norm, Lane::dp);
    // Else weights come back when all updates are issued, so that no lane waits for the host while
    // backward still needs it.
    while (updated_ < update_order_.size()) {
      update_next();
      if (!early_) bring_back(update_order_[updated_ - 1]);
    }
    if (early_)
      for (int chunk : forward_order_) bring_back(chunk);
    if (norm_is_last_) add(Op::norm, Lane::dp);
    return std::move(result_);
  }

 private:
  static bool has(const std::vector<int>& chunks, int chunk) {
    return std::find(chunks.begin(), chunks.end(), chunk) != chunks.end();
  }
  bool is_put_off(int chunk) const {
    const auto at = std::find(forward_order_.begin(), forward_order_.end(), chunk);
    return static_cast<size_t>(at - forward_order_.begin()) % kPutOff == kPutOff - 1;
  }

  // In the order in which the next step's forward wants the weights, but for early ones.
  void plan_updates() {
    if (early_)
      for (int chunk : whole_order_)
        if (!is_put_off(chunk)) update_order_.push_back(chunk);
    for (int chunk : forward_order_)
      if (!early_ || is_put_off(chunk)) update_order_.push_back(chunk);
  }

  void add(Op op, Lane lane, int chunk = -1) { result_.push_back(closing(op, lane, chunk)); }

  void load_state(size_t at) {
    if (homes_.optimizer == Home::nvme && at < update_order_.size())
      add(Op::load_state, Lane::disk, update_order_[at]);
  }
  void update_next() {
    const int chunk = update_order_[updated_];
    if (updated_ == 0) load_state(0);
    load_state(++updated_);
    add(Op::update, homes_.optimizer == Home::device ? Lane::compute : Lane::host, chunk);
    if (homes_.optimizer == Home::nvme) add(Op::save_state, Lane::disk, chunk);
    if (homes_.weights == Home::nvme) add(Op::save_weights, Lane::disk, chunk);
  }
  void bring_back(int chunk) {
    if (homes_.weights != Home::device) return;  // fetched when they are needed
    if (homes_.optimizer != Home::device) add(Op::fetch_weights, Lane::h2d, chunk);
    if (gathers_) add(Op::gather_weights, Lane::dp, chunk);
  }

  const Homes homes_;
  const bool gathers_, early_, norm_is_last_;
  std::vector<int> forward_order_, whole_order_;  // chunks by first forward, by last backward
  std::vector<size_t> last_backwards_;            // in the program
  std::vector<int> update_order_;
  size_t updated_ = 0;
  Program result_;
};

}  // namespace

Program with_step_end(const Program& program, const ScheduleShape& shape,
                      const LowerOptions& options) {
  return StepEnd(program, shape, options).apply(program);
}

}  // namespace voltapile
