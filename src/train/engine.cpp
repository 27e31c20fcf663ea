#include <algorithm>
#include <cstring>
#include <map>
#include <set>

#include "engine_impl.hpp"

namespace voltapile {

Engine::Impl::Impl(RankContext& context_, const Phase& phase_)
    : context(context_),
      plan(context_.plan()),
      phase(phase_),
      device(context_.device()),
      kernels(context_.device().kernels()),
      rules{plan.deck.optimizer.betas[0], plan.deck.optimizer.betas[1], plan.deck.optimizer.eps,
            plan.deck.optimizer.weight_decay},
      training(phase_.training),
      early_updates(phase_.shape.early_updates) {
  if (!training) {
    own_arena = std::make_unique<Arena>(context.arena(),
                                        phase.buffers[static_cast<size_t>(context.coord().pp)]);
  }
  arena = training ? &context.arena() : own_arena.get();

  // The ring of states and the vectors that norm sums, and host copies of what a step leaves.
  host_states = device.allocate_host(kRing * sizeof(StepState), "step results");
  host_updates = device.allocate_host(kRing * sizeof(StepState), "step results");
  host_inputs = device.allocate_host(kRing * sizeof(StepInputs), "step inputs");
  host_votes = device.allocate_host(kRing * sizeof(double), "votes");
  host_ends = device.allocate_host(kRing * sizeof(double), "ends of steps");
  states = reinterpret_cast<StepState*>(arena->at(Value::step_state, -1, -1));
  const auto at = [&](Value value, int index) {
    return arena->at(value, -1, -1) + static_cast<size_t>(index) * sizeof(double);
  };
  constexpr int kSums = NormSlots::count + 1;
  static_assert((kSums + 1) * sizeof(double) <= kControlBytes);
  static_assert(kRing * sizeof(StepState) <= kControlBytes);
  slots = {at(Value::norm_sums, 0), DType::f64, {NormSlots::count}};
  summed = {at(Value::norm_sums, 0), DType::f64, {kSums}};
  first_bad = {at(Value::norm_sums, kSums), DType::i32, {1}};
  loss = {at(Value::loss, 0), DType::f64, {1}};
  correct = {at(Value::loss, 1), DType::f64, {2}};
  Stream& compute = device.stream(Lane::compute);
  for (const TensorView& sums : {summed, loss, correct}) kernels.fill(sums, 0, compute);
  kernels.fill(first_bad, kNoBadParameter, compute);
  device.wait_on_host(device.record(compute));

  const Deck& deck = plan.deck;
  const ModelContext model_context{
      .architecture = &plan.architecture,
      .kernels = &kernels,
      .stream = &compute,
      .tensor = context.links().tensor.get(),
      .sizes = phase.sizes,
      .seed = deck.run.seed,
      .pixel_mean = deck.data.mean,
      .pixel_std = deck.data.std,
  };
  static std::atomic<uint64_t> engines = 0;
  first_work_key = engines++ << 32;
  chunks.resize(plan.chunks.size());
  for (int number : context.chunks()) {
    const Chunk& chunk = plan.chunks[static_cast<size_t>(number)];
    ChunkParts& parts = chunks[static_cast<size_t>(number)];
    parts.model = std::make_unique<ChunkModel>(
        model_context, ChunkShape{chunk.first_layer, chunk.end_layer,
                                  training ? chunk.segment_layers : 0, training});
    if (!training) continue;
    const Range own = context.shard(number);
    parts.runs = update_runs(plan.architecture, chunk.parameters, own, deck.optimizer.layer_decay);
    parts.updated = joined(parts.runs);
    parts.pieces = norm_pieces(plan.architecture, chunk.parameters, own, plan.mesh, context.coord(),
                               deck.optimizer.zero);
    parts.partial =
        tensor_partial_ranges(plan.architecture, chunk.parameters, plan.mesh, plan.sequence);
    parts.stored = stored_layout(plan, phase, number);
  }
  bind();
}

// Turns operands into slot numbers once, so that a step only walks integers.
void Engine::Impl::bind() {
  const auto pp = static_cast<size_t>(context.coord().pp);
  const BufferPlan& buffers = phase.buffers[pp];
  std::map<std::pair<Value, int>, int> numbers;
  const auto number_of = [&](const Operand& operand) {
    const int slot = buffers.slot(operand.value, operand.chunk, operand.micro);
    const Value stored_in = buffers.pool(operand.value).stored_in;
    const auto [at, added] = numbers.try_emplace({stored_in, slot}, static_cast<int>(order.size()));
    if (added) order.emplace_back();
    return at->second;
  };
  std::set<int> begun;
  std::set<Lane> used = {Lane::compute, Lane::dp};
  const OperandRules rules = phase.shape.rules(training);
  const Instruction* rebuilt = nullptr;  // by the recompute just before on the compute lane
  for (const Instruction& instruction : phase.programs[pp]) {
    BoundInstruction bound{.instruction = instruction};
    for (const Operand& operand : operands(instruction, phase.shape.chunks, rules)) {
      const int number = number_of(operand);
      if (operand.access != Access::write) bound.reads.push_back(number);
      if (operand.access != Access::read) bound.writes.push_back(number);
    }
    const Op op = instruction.op;
    if (op == Op::backward || op == Op::backward_input) {
      bound.first_backward = begun.insert(instruction.chunk).second;
      VP_CHECK(plan.chunks[static_cast<size_t>(instruction.chunk)].segment_layers == 0 ||
                   (rebuilt != nullptr && rebuilt->chunk == instruction.chunk &&
                    rebuilt->micro == instruction.micro),
               "{} of chunk {}, micro {} without recompute", name_of(op), instruction.chunk,
               instruction.micro);
    }
    if (instruction.lane == Lane::compute) rebuilt = op == Op::recompute ? &instruction : nullptr;
    used.insert(instruction.lane);
    program.push_back(std::move(bound));
  }
  lanes.assign(used.begin(), used.end());
  host_clocks = device.allocate_host(program.size() * kRing * sizeof(Clocked), "clocks");
}

Clocked& Engine::Impl::clock_of(size_t instruction, size_t ring) const {
  return reinterpret_cast<Clocked*>(host_clocks.data())[instruction * kRing + ring];
}

StepState* Engine::Impl::state(int64_t step) const { return states + step % kRing; }

StepState* Engine::Impl::host_update(int64_t step) const {
  return reinterpret_cast<StepState*>(host_updates.data()) + step % kRing;
}

void Engine::Impl::issue(const StepInputs* inputs, const BatchMemory& batch, int64_t valid,
                         Votes votes) {
  VP_CHECK(issued - waited < kRing - 1, "{} steps are in flight", issued - waited);
  const auto ring = static_cast<size_t>(issued % kRing);
  if (inputs != nullptr) {
    auto* host = reinterpret_cast<StepInputs*>(host_inputs.data()) + ring;
    *host = *inputs;
    device.copy(&state(issued)->inputs, host, sizeof(StepInputs), device.stream(Lane::compute));
  }
  show_next_step();
  for (size_t i = 0; i < program.size(); ++i) {
    const BoundInstruction& bound = program[i];
    const auto lane = static_cast<size_t>(bound.instruction.lane);
    Stream& stream = device.stream(bound.instruction.lane);
    Tickets needed{};
    const auto need = [&needed](const Tickets& tickets) {
      for (size_t i = 0; i < needed.size(); ++i) needed[i] = std::max(needed[i], tickets[i]);
    };
    for (int slot : bound.reads) need(order[static_cast<size_t>(slot)].written);
    for (int slot : bound.writes) {
      need(order[static_cast<size_t>(slot)].written);
      need(order[static_cast<size_t>(slot)].read);
    }
    for (size_t other = 0; other < needed.size(); ++other) {
      uint64_t& known = waited_for[lane][other];
      if (other == lane || needed[other] <= known) continue;
      known = needed[other];
      device.wait(stream, {&device.stream(static_cast<Lane>(other)), known});
    }
    Clocked& clock = clock_of(i, ring);
    device.open_range(bound.instruction);
    device.mark(stream, &clock.begin);
    enqueue(bound, stream, batch, valid, votes);
    device.mark(stream, &clock.end);
    device.close_range();
    const uint64_t done = device.record(stream).ticket;
    for (int slot : bound.reads) order[static_cast<size_t>(slot)].read[lane] = done;
    for (int slot : bound.writes) {
      SlotOrder& after = order[static_cast<size_t>(slot)];
      after = {};
      after.written[lane] = done;
    }
  }
  ++issued;
}

Engine::Engine(RankContext& context, const Phase& phase)
    : impl_(std::make_unique<Impl>(context, phase)) {}

// Memory that lanes use is about to go, perhaps after a failure.
Engine::~Engine() { impl_->device.wait_until_idle(); }

void Engine::set_state(const StepState& state) {
  drain();
  impl_->issued = impl_->waited = impl_->first_step = state.inputs.step;
  impl_->first_shown = impl_->end_shown = state.inputs.step;
  auto* host = reinterpret_cast<StepState*>(impl_->host_states.data());
  for (int i = 0; i < kRing; ++i) *impl_->host_update(i) = host[i] = state;
  Stream& compute = impl_->device.stream(Lane::compute);
  impl_->device.copy(impl_->states, host, kRing * sizeof(StepState), compute);
  impl_->device.wait_on_host(impl_->device.record(compute));
}

void Engine::issue(const StepInputs& inputs, const BatchMemory& batch, const Votes& votes) {
  VP_CHECK(inputs.step == impl_->issued, "step {} was issued after step {}", inputs.step,
           impl_->issued - 1);
  impl_->issue(&inputs, batch, impl_->rank_samples(), votes);
}

void Engine::issue_evaluation(const BatchMemory& batch, int64_t valid) {
  impl_->issue(nullptr, batch, valid, {});
  // The batch is lent for this call, and evaluation is rare: one step at a time.
  drain();
  impl_->waited = impl_->issued;
}

StepResult Engine::wait_for_step() {
  VP_CHECK(impl_->waited < impl_->issued, "no step was issued");
  const auto ring = static_cast<size_t>(impl_->waited % kRing);
  impl_->device.wait_on_host(impl_->step_end[ring]);
  StepResult result;
  result.state = reinterpret_cast<const StepState*>(impl_->host_states.data())[ring];
  result.ended = reinterpret_cast<const double*>(impl_->host_ends.data())[ring];
  result.votes = votes_of(reinterpret_cast<const double*>(impl_->host_votes.data())[ring]);
  // Updates of this step may still run, but everything of the step before has ended: its clocks are
  // final.
  if (impl_->waited > impl_->first_step) {
    impl_->add_clocks(static_cast<size_t>((impl_->waited - 1) % kRing), result.timers);
  }
  ++impl_->waited;
  return result;
}

void Engine::Impl::add_clocks(size_t ring, SummaryTimers& timers) const {
  for (size_t i = 0; i < program.size(); ++i) {
    const Instruction& instruction = program[i].instruction;
    const double seconds = clock_of(i, ring).end - clock_of(i, ring).begin;
    timers.busy_seconds[static_cast<size_t>(instruction.op)] += seconds;
    timers.count[static_cast<size_t>(instruction.op)] += 1;
    timers.lane_busy_seconds[static_cast<size_t>(instruction.lane)] += seconds;
  }
}

SummaryTimers Engine::last_timers() const {
  VP_CHECK(impl_->waited == impl_->issued, "timers are asked for while a step runs");
  SummaryTimers timers;
  if (impl_->waited > impl_->first_step)
    impl_->add_clocks(static_cast<size_t>((impl_->waited - 1) % kRing), timers);
  return timers;
}

std::vector<Span> Engine::spans(int64_t step) const {
  VP_CHECK(impl_->first_step <= step && step < impl_->waited && step + 2 >= impl_->waited,
           "spans of step {} are asked for after step {}", step, impl_->waited - 1);
  const RankContext& context = impl_->context;
  const int rank = context.plan().mesh.rank(context.coord());
  std::vector<Span> spans;
  spans.reserve(impl_->program.size());
  for (size_t i = 0; i < impl_->program.size(); ++i) {
    const Clocked& clock = impl_->clock_of(i, static_cast<size_t>(step % kRing));
    spans.push_back({rank, step, impl_->program[i].instruction, clock.begin, clock.end});
  }
  return spans;
}

void Engine::drain() {
  for (Lane lane : impl_->lanes)
    impl_->device.wait_on_host(impl_->device.record(impl_->device.stream(lane)));
}

StepState Engine::next_state() const {
  VP_CHECK(impl_->waited == impl_->issued, "the state is asked for while a step runs");
  StepState next;
  Stream& stream = impl_->device.stream(Lane::compute);
  auto* host = reinterpret_cast<StepState*>(impl_->host_states.data());
  impl_->device.copy(host, impl_->state(impl_->waited), sizeof(StepState), stream);
  impl_->device.wait_on_host(impl_->device.record(stream));
  return *host;
}

void Engine::keep_logits(TensorView logits) {
  VP_CHECK(!impl_->training && logits.shape.dims() == 3, "logits of a training step are asked for");
  impl_->logits = logits;
}

Engine::Totals Engine::take_totals() {
  Impl& impl = *impl_;
  Stream& stream = impl.device.stream(Lane::dp);
  drain();
  const bool counts = impl.context.has_last_chunk() && impl.context.coord().tp == 0;
  Communicator& world = *impl.context.links().norm;
  for (const TensorView& sums : {impl.loss, impl.correct}) {
    if (!counts) impl.kernels.fill(sums, 0, stream);
    world.all_reduce(sums, Reduction::sum, stream);
  }
  auto* staging = reinterpret_cast<double*>(impl.host_states.data());
  impl.device.copy(staging, impl.loss.data, impl.loss.bytes(), stream);
  impl.device.copy(staging + 1, impl.correct.data, impl.correct.bytes(), stream);
  for (const TensorView& sums : {impl.loss, impl.correct}) impl.kernels.fill(sums, 0, stream);
  impl.device.wait_on_host(impl.device.record(stream));
  return {staging[0], staging[1], staging[2]};
}

}  // namespace voltapile
