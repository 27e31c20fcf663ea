#include "run_state.hpp"

#include <algorithm>
#include <functional>
#include <map>
#include <type_traits>

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
void round_to(DType type, const float* from, int64_t n, std::byte* to, ThreadPool& pool) {
  constexpr int64_t kGrain = 1 << 16;
  const auto each = [&](auto* rounded) {
    using T = std::remove_pointer_t<decltype(rounded)>;
    pool.for_each_range(n, kGrain, [&](int64_t begin, int64_t end) {
      std::transform(from + begin, from + end, rounded + begin,
                     [](float x) { return static_cast<T>(x); });
    });
  };
  switch (type) {
    case DType::f32: return each(reinterpret_cast<float*>(to));
    case DType::f16: return each(reinterpret_cast<Half*>(to));
    case DType::bf16: return each(reinterpret_cast<BFloat16*>(to));
    default: VP_CHECK(false, "weights of type {}", name_of(type));
  }
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

size_t elements_of_shard(const RankContext& context, int chunk) {
  const Range own = context.shard(chunk);
  return static_cast<size_t>(own.end - own.begin);
}

// A chunk's weights and state on their way to where they live, a slice of its flat buffer at a
// time, so that a start needs no second copy of anything large. A slice lies inside of this rank's
// shard or outside of it.
class Passage {
 public:
  // Whole blocks of 8-bit moments.
  static constexpr int64_t kSlice = 1 << 22;
  enum Part { master, m, v, ema };

  Passage(RankContext& context, ThreadPool& pool, int parts)
      : context_(context),
        pool_(pool),
        parts_(parts),
        type_(context.plan().train.sizes.working),
        wide_(context.device().allocate_host(static_cast<size_t>(parts) * kSlice * sizeof(float),
                                             "state on its way")),
        rounded_(context.device().allocate_host(kSlice * bytes_of(type_), "weights on their way")) {
    clear(kSlice);
  }

  // kSlice numbers, of the slice from its start on; zeros until they are written.
  float* of(Part part) const { return reinterpret_cast<float*>(wide_.data()) + part * kSlice; }

  // Makes the first n numbers of every part zeros.
  void clear(int64_t n) const {
    for (int part = 0; part < parts_; ++part) std::fill_n(of(static_cast<Part>(part)), n, 0.0f);
  }

  // `fill(chunk, slice, inside)` writes a slice's numbers and says where those of its state are.
  template <class F>
  void run(const F& fill) {
    const bool all_weights = context_.plan().deck.memory.weights == Home::device;
    for (const int chunk : context_.chunks()) {
      const Range own = context_.shard(chunk);
      for (const Range& slice : slices(chunk)) {
        const bool inside = own.begin <= slice.begin && slice.end <= own.end;
        if (!inside && !all_weights) continue;
        const ShardState<const float> state = fill(chunk, slice, inside);
        const int64_t n = slice.end - slice.begin;
        round_to(type_, of(master), n, rounded_.data(), pool_);
        context_.put_weights(chunk, slice, rounded_.data());
        if (inside) context_.put_state(chunk, slice, state);
      }
      context_.keep(chunk);
    }
  }

 private:
  std::vector<Range> slices(int chunk) const {
    const int64_t all = context_.plan().chunks[static_cast<size_t>(chunk)].parameters.elements;
    const Range own = context_.shard(chunk);
    std::vector<Range> slices;
    for (const Range& part : {Range{0, own.begin}, own, Range{std::max(own.begin, own.end), all}}) {
      for (int64_t begin = part.begin; begin < part.end; begin += kSlice)
        slices.push_back({begin, std::min(begin + kSlice, part.end)});
    }
    return slices;
  }

  RankContext& context_;
  ThreadPool& pool_;
  int parts_;
  DType type_;
  Buffer wide_, rounded_;
};

// f(parameter, its elements in the slice, their place there) for all that a slice has.
template <class F>
void for_each_part(const Plan& plan, int chunk, const Range& slice, const F& f) {
  for (const FlatEntry& entry : plan.chunks[static_cast<size_t>(chunk)].parameters.entries) {
    const Overlap part = overlap(entry, slice);
    if (part.empty()) continue;
    f(parameter_of(plan.architecture, entry),
      Range{part.begin - entry.offset, part.end - entry.offset}, part.begin - slice.begin);
  }
}

// Moments zero; `fill` gives the elements of a parameter's local tensor from `begin` on.
void begin_with(
    RankContext& context, ThreadPool& pool,
    const std::function<void(const Parameter&, int64_t begin, TensorView values)>& fill) {
  Passage passage(context, pool, 2);
  float* const master = passage.of(Passage::master);
  const float* const zeros = passage.of(Passage::m);
  passage.run([&](int chunk, const Range& slice, bool) -> ShardState<const float> {
    std::fill_n(master, slice.end - slice.begin, 0.0f);
    for_each_part(context.plan(), chunk, slice,
                  [&](const Parameter& parameter, const Range& part, int64_t at) {
                    fill(parameter, part.begin, host_view(master + at, part.end - part.begin));
                  });
    return {.master = master, .m = zeros, .v = zeros, .ema = master};
  });
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
  begin_with(context, pool, [&](const Parameter& parameter, int64_t begin, TensorView values) {
    initial_values(plan.architecture, parameter, plan.deck.run.seed, plan.mesh.tp,
                   context.coord().tp, begin, values, &pool);
  });
}

std::vector<std::string> take_weights(RankContext& context, int threads) {
  ThreadPool pool(threads);
  const Plan& plan = context.plan();
  InitialWeights weights(plan.deck.model.init, plan.architecture, plan.deck.run.seed,
                         plan.deck.path, Digests::compared);
  const Parameter* held = nullptr;
  std::vector<float> local;
  begin_with(context, pool, [&](const Parameter& parameter, int64_t begin, TensorView values) {
    if (held != &parameter) {
      const Shape shape = local_shape(parameter, plan.mesh.tp);
      local.assign(static_cast<size_t>(shape.elements()), 0.0f);
      copy_local(parameter, plan.mesh.tp, context.coord().tp, weights.read(parameter),
                 {local.data(), DType::f32, shape});
      held = &parameter;
    }
    std::copy_n(local.data() + begin, values.elements(), values.as<float>());
  });
  return weights.notes();
}

void restore(RankContext& context, const std::filesystem::path& checkpoint, Restore what,
             int threads) {
  ThreadPool pool(threads);
  const Plan& plan = context.plan();
  CheckpointReader reader(checkpoint, {plan.mesh.tp, context.coord().tp});
  const bool everything = what == Restore::everything;
  // What is only evaluated is the average, where the deck asks for one.
  const bool has_average = plan.deck.optimizer.ema > 0, averaged = has_average && !everything;
  Passage passage(context, pool, !everything ? 1 : has_average ? 4 : 3);
  using Part = Passage::Part;
  passage.run([&](int chunk, const Range& slice, bool inside) -> ShardState<const float> {
    const int64_t n = slice.end - slice.begin;
    const bool moments = everything && inside;
    passage.clear(n);
    std::vector<Piece> pieces;
    for_each_part(plan, chunk, slice,
                  [&](const Parameter& parameter, const Range& range, int64_t at) {
                    const auto view = [&](Part part) {
                      return host_view(passage.of(part) + at, range.end - range.begin);
                    };
                    Piece piece{.parameter = &parameter, .begin = range.begin, .end = range.end};
                    (averaged ? piece.ema : piece.master) = view(Part::master);
                    if (moments) {
                      piece.m = view(Part::m);
                      piece.v = view(Part::v);
                      if (has_average) piece.ema = view(Part::ema);
                    }
                    pieces.push_back(piece);
                  });
    reader.read(pieces);
    if (!moments) return {.master = passage.of(Part::master), .ema = passage.of(Part::master)};
    return {.master = passage.of(Part::master),
            .m = passage.of(Part::m),
            .v = passage.of(Part::v),
            .ema = has_average ? passage.of(Part::ema) : nullptr};
  });
}

void show_weights(RankContext& context, Shown which) {
  const DType type = context.plan().train.sizes.working;
  size_t most = 0;
  for (int chunk : context.chunks()) most = std::max(most, elements_of_shard(context, chunk));
  Buffer wide = context.device().allocate_host(most * sizeof(float), "weights on their way");
  Buffer rounded = context.device().allocate_host(most * bytes_of(type), "weights on their way");
  auto* const data = reinterpret_cast<float*>(wide.data());
  for (int chunk : context.chunks()) {
    ShardState<float> into;
    (which == Shown::averaged ? into.ema : into.master) = data;
    context.get_state(chunk, into);
    round_to(type, data, static_cast<int64_t>(elements_of_shard(context, chunk)), rounded.data(),
             context.host_pool());
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
            elements_of_shard(context, home.chunk) * sizeof(float), "state on its way"));
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
