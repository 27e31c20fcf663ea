#include "run_state.hpp"

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>

#include "voltapile/base/thread_pool.hpp"
#include "voltapile/checkpoint/initial_weights.hpp"

#include "state_pool.hpp"

namespace voltapile {

namespace {

const Parameter& parameter_of(const Architecture& architecture, const FlatEntry& entry) {
  return architecture.layers[static_cast<size_t>(entry.layer)]
      .parameters[static_cast<size_t>(entry.parameter)];
}

// Rounds as every update does.
void round_to(DType type, const float* from, size_t n, std::byte* to) {
  switch (type) {
    case DType::f32: std::memcpy(to, from, n * sizeof(float)); break;
    case DType::f16:
      std::transform(from, from + n, reinterpret_cast<Half*>(to),
                     [](float x) { return static_cast<Half>(x); });
      break;
    case DType::bf16:
      std::transform(from, from + n, reinterpret_cast<BFloat16*>(to),
                     [](float x) { return BFloat16(x); });
      break;
    default: VP_CHECK(false, "weights of type {}", name_of(type));
  }
}

// The working-type copy of a chunk's master weights.
void put_weights(RankContext& context, int chunk, const float* master) {
  const DType type = context.plan().train.sizes.working;
  const auto n =
      static_cast<size_t>(context.plan().chunks[static_cast<size_t>(chunk)].parameters.elements);
  Buffer staging = context.device().allocate_host(n * bytes_of(type), "weights on their way");
  round_to(type, master, n, staging.data());
  context.put_weights(chunk, staging.data());
}

// Weights and state of a chunk from its whole local master copy and its shard of the rest; without
// averaged weights those begin as the weights.
void put_chunk(RankContext& context, int chunk, const float* master, const float* m, const float* v,
               const float* ema = nullptr) {
  put_weights(context, chunk, master);
  const float* const own = master + context.shard(chunk).begin;
  context.put_state(chunk, {.master = own, .m = m, .v = v, .ema = ema == nullptr ? own : ema});
}

// The part of an entry that lies in [range.begin, range.end) of the flat buffer.
struct Overlap {
  int64_t begin, end;
  bool empty() const { return begin >= end; }
};
Overlap overlap(const FlatEntry& entry, const Range& range) {
  return {std::max(entry.offset, range.begin), std::min(entry.offset + entry.elements, range.end)};
}

TensorView host_view(float* data, int64_t elements) { return {data, DType::f32, {elements}}; }

// Host memory for the largest chunk, taken once: `parts` shards beside the whole local master copy.
class Staging {
 public:
  Staging(RankContext& context, size_t parts, std::string_view what) {
    size_t most = 0;
    for (int chunk : context.chunks())
      most = std::max(most, elements_of(context, chunk) + parts * shard_of(context, chunk));
    memory_ = context.device().allocate_host(most * sizeof(float), what);
  }
  static size_t elements_of(const RankContext& context, int chunk) {
    return static_cast<size_t>(
        context.plan().chunks[static_cast<size_t>(chunk)].parameters.elements);
  }
  static size_t shard_of(const RankContext& context, int chunk) {
    const Range own = context.shard(chunk);
    return static_cast<size_t>(own.end - own.begin);
  }
  float* data() const { return reinterpret_cast<float*>(memory_.data()); }

 private:
  Buffer memory_;
};

// Moments zero; `fill` gives each parameter's local tensor, whose memory is zero.
void begin_with(RankContext& context,
                const std::function<void(const Parameter&, TensorView)>& fill) {
  const Plan& plan = context.plan();
  const Staging staging(context, 1, "initial weights");
  float* const master = staging.data();
  for (int number : context.chunks()) {
    const FlatLayout& layout = plan.chunks[static_cast<size_t>(number)].parameters;
    float* const zeros = master + layout.elements;
    std::fill_n(master, Staging::elements_of(context, number) + Staging::shard_of(context, number),
                0.0f);
    for (const FlatEntry& entry : layout.entries) {
      const Parameter& parameter = parameter_of(plan.architecture, entry);
      fill(parameter, {master + entry.offset, DType::f32, local_shape(parameter, plan.mesh.tp)});
    }
    put_chunk(context, number, master, zeros, zeros);
  }
}

void copy_local(const Parameter& parameter, int tp, int tp_rank, const std::vector<float>& whole,
                TensorView local) {
  const int64_t whole_columns = parameter.shape.elements() / parameter.shape[0];
  const int64_t columns = local.elements() / local.shape[0];
  for (const Rectangle& part : placement(parameter, tp, tp_rank)) {
    for (int64_t row = 0; row < part.rows; ++row) {
      std::copy_n(whole.data() + (part.whole_row + row) * whole_columns + part.whole_column,
                  part.columns,
                  local.as<float>() + (part.local_row + row) * columns + part.local_column);
    }
  }
}

}  // namespace

void initialise(RankContext& context, int threads) {
  ThreadPool pool(threads);
  const Plan& plan = context.plan();
  begin_with(context, [&](const Parameter& parameter, TensorView local) {
    initial_values(plan.architecture, parameter, plan.deck.run.seed, plan.mesh.tp,
                   context.coord().tp, local, &pool);
  });
}

std::vector<std::string> take_weights(RankContext& context) {
  const Plan& plan = context.plan();
  InitialWeights weights(plan.deck.model.init, plan.architecture, plan.deck.run.seed,
                         plan.deck.path, Digests::compared);
  begin_with(context, [&](const Parameter& parameter, TensorView local) {
    copy_local(parameter, plan.mesh.tp, context.coord().tp, weights.read(parameter), local);
  });
  return weights.notes();
}

void restore(RankContext& context, const std::filesystem::path& checkpoint, Restore what) {
  const Plan& plan = context.plan();
  const PieceOwner owner{plan.mesh.tp, context.coord().tp};
  const Staging staging(context, 3, "weights on their way");
  const bool averaged = what == Restore::weights && plan.deck.optimizer.ema > 0;
  float* const master = staging.data();
  for (int number : context.chunks()) {
    const FlatLayout& layout = plan.chunks[static_cast<size_t>(number)].parameters;
    const Range own = context.shard(number);
    const size_t elements = Staging::elements_of(context, number),
                 own_elements = Staging::shard_of(context, number);
    float* const m = master + elements;
    float* const v = m + own_elements;
    float* const ema = v + own_elements;
    std::fill_n(master, elements + 3 * own_elements, 0.0f);
    std::vector<Piece> weights, moments;
    for (const FlatEntry& entry : layout.entries) {
      const Parameter& parameter = parameter_of(plan.architecture, entry);
      weights.push_back({.parameter = &parameter, .begin = 0, .end = entry.elements});
      // What is only evaluated is the average, where the deck asks for one.
      (averaged ? weights.back().ema : weights.back().master) =
          host_view(master + entry.offset, entry.elements);
      const Overlap part = overlap(entry, own);
      if (what == Restore::weights || part.empty()) continue;
      const int64_t size = part.end - part.begin, at = part.begin - own.begin;
      moments.push_back({.parameter = &parameter,
                         .begin = part.begin - entry.offset,
                         .end = part.end - entry.offset,
                         .m = host_view(m + at, size),
                         .v = host_view(v + at, size),
                         .ema = host_view(ema + at, size)});
    }
    load_checkpoint(checkpoint, owner, weights);
    if (what == Restore::everything) load_checkpoint(checkpoint, owner, moments);
    put_chunk(context, number, master, m, v, what == Restore::everything ? ema : nullptr);
  }
}

void show_weights(RankContext& context, Shown which) {
  const DType type = context.plan().train.sizes.working;
  size_t most = 0;
  for (int chunk : context.chunks()) most = std::max(most, Staging::shard_of(context, chunk));
  Buffer wide = context.device().allocate_host(most * sizeof(float), "weights on their way");
  Buffer rounded = context.device().allocate_host(most * bytes_of(type), "weights on their way");
  auto* const data = reinterpret_cast<float*>(wide.data());
  for (int chunk : context.chunks()) {
    ShardState<float> into;
    (which == Shown::averaged ? into.ema : into.master) = data;
    context.get_state(chunk, into);
    round_to(type, data, Staging::shard_of(context, chunk), rounded.data());
    context.put_weight_shard(chunk, rounded.data());
  }
}

void stage(RankContext& context, StagedState& staged) {
  const RankPieces own = pieces_of(context);
  staged.pieces = own.pieces;
  std::map<int, ShardState<float>> copies;
  size_t held = 0;
  for (const RankPieces::Home& home : own.homes) {
    if (copies.contains(home.chunk)) continue;
    const auto copy = [&] {
      if (staged.memory.size() == held)
        staged.memory.push_back(context.device().allocate_host(
            Staging::shard_of(context, home.chunk) * sizeof(float), "state on its way"));
      return reinterpret_cast<float*>(staged.memory[held++].data());
    };
    ShardState<float>& parts = copies[home.chunk];
    parts = {.master = copy(), .m = copy(), .v = copy()};
    if (context.plan().deck.optimizer.ema > 0) parts.ema = copy();
    context.get_state(home.chunk, parts);
  }
  for (size_t i = 0; i < own.pieces.size(); ++i) {
    Piece& piece = staged.pieces[i];
    const ShardState<float>& parts = copies[own.homes[i].chunk];
    const auto view = [&](float* shard) {
      if (shard == nullptr) return TensorView{};
      return host_view(shard + own.homes[i].begin, piece.end - piece.begin);
    };
    piece.master = view(parts.master);
    piece.m = view(parts.m);
    piece.v = view(parts.v);
    piece.ema = view(parts.ema);
  }
}

}  // namespace voltapile
