#include "run_state.hpp"

#include <algorithm>
#include <array>
#include <cstring>

#include "voltapile/base/thread_pool.hpp"

namespace voltapile {

namespace {

const Parameter& parameter_of(const Architecture& architecture, const FlatEntry& entry) {
  return architecture.layers[static_cast<size_t>(entry.layer)]
      .parameters[static_cast<size_t>(entry.parameter)];
}

// The working-type copy of master weights, rounded as every update rounds it.
void put_weights(RankContext& context, int chunk, const float* master) {
  const DType type = context.plan().train.sizes.working;
  const auto n =
      static_cast<size_t>(context.plan().chunks[static_cast<size_t>(chunk)].parameters.elements);
  Buffer staging = context.device().allocate_host(n * bytes_of(type), "weights on their way");
  switch (type) {
    case DType::f32: std::memcpy(staging.data(), master, n * sizeof(float)); break;
    case DType::f16:
      std::transform(master, master + n, reinterpret_cast<Half*>(staging.data()),
                     [](float x) { return static_cast<Half>(x); });
      break;
    case DType::bf16:
      std::transform(master, master + n, reinterpret_cast<BFloat16*>(staging.data()),
                     [](float x) { return BFloat16(x); });
      break;
    default: VP_CHECK(false, "weights of type {}", name_of(type));
  }
  context.put_weights(chunk, staging.data());
}

// Weights and master weights of a chunk from its whole local master copy.
void put_master(RankContext& context, int chunk, const float* master) {
  put_weights(context, chunk, master);
  context.put_state(chunk, StatePart::master, master + context.shard(chunk).begin);
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

}  // namespace

void initialise(RankContext& context, int threads) {
  ThreadPool pool(threads);
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
      initial_values(
          plan.architecture, parameter, plan.deck.run.seed, plan.mesh.tp, context.coord().tp,
          {master + entry.offset, DType::f32, local_shape(parameter, plan.mesh.tp)}, &pool);
    }
    put_master(context, number, master);
    context.put_state(number, StatePart::m, zeros);
    context.put_state(number, StatePart::v, zeros);
  }
}

void restore(RankContext& context, const std::filesystem::path& checkpoint, Restore what) {
  const Plan& plan = context.plan();
  const PieceOwner owner{plan.mesh.tp, context.coord().tp};
  const Staging staging(context, 2, "weights on their way");
  float* const master = staging.data();
  for (int number : context.chunks()) {
    const FlatLayout& layout = plan.chunks[static_cast<size_t>(number)].parameters;
    const Range own = context.shard(number);
    const size_t elements = Staging::elements_of(context, number),
                 own_elements = Staging::shard_of(context, number);
    float* const m = master + elements;
    float* const v = m + own_elements;
    std::fill_n(master, elements + 2 * own_elements, 0.0f);
    std::vector<Piece> weights, moments;
    for (const FlatEntry& entry : layout.entries) {
      const Parameter& parameter = parameter_of(plan.architecture, entry);
      weights.push_back({.parameter = &parameter,
                         .begin = 0,
                         .end = entry.elements,
                         .master = host_view(master + entry.offset, entry.elements)});
      const Overlap part = overlap(entry, own);
      if (what == Restore::weights || part.empty()) continue;
      const int64_t size = part.end - part.begin, at = part.begin - own.begin;
      moments.push_back({.parameter = &parameter,
                         .begin = part.begin - entry.offset,
                         .end = part.end - entry.offset,
                         .m = host_view(m + at, size),
                         .v = host_view(v + at, size)});
    }
    load_checkpoint(checkpoint, owner, weights);
    put_master(context, number, master);
    if (what == Restore::everything) load_checkpoint(checkpoint, owner, moments);
    context.put_state(number, StatePart::m, m);
    context.put_state(number, StatePart::v, v);
  }
}

void stage(RankContext& context, StagedState& staged) {
  const Plan& plan = context.plan();
  const bool owns_copies = plan.deck.optimizer.zero == 1 || context.coord().dp == 0;
  staged.pieces.clear();
  size_t held = 0;
  for (int number : context.chunks()) {
    if (!owns_copies) break;
    const Range own = context.shard(number);
    const auto n = static_cast<size_t>(own.end - own.begin);
    std::array<const float*, 3> parts{};
    for (size_t part = 0; part < parts.size(); ++part) {
      const auto what = static_cast<StatePart>(part);
      parts[part] = context.state_on_host(number, what);
      if (parts[part] != nullptr) continue;
      if (staged.memory.size() == held)
        staged.memory.push_back(
            context.device().allocate_host(n * sizeof(float), "state on its way"));
      auto* host = reinterpret_cast<float*>(staged.memory[held++].data());
      context.get_state(number, what, host);
      parts[part] = host;
    }
    for (const FlatEntry& entry : plan.chunks[static_cast<size_t>(number)].parameters.entries) {
      const Parameter& parameter = parameter_of(plan.architecture, entry);
      if (parameter.split == Split::replicated && context.coord().tp != 0) continue;
      const Overlap part = overlap(entry, own);
      if (part.empty()) continue;
      const auto view = [&](StatePart of) {
        const float* data = parts[static_cast<size_t>(of)] + (part.begin - own.begin);
        return host_view(const_cast<float*>(data), part.end - part.begin);  // which only reads it
      };
      staged.pieces.push_back({.parameter = &parameter,
                               .begin = part.begin - entry.offset,
                               .end = part.end - entry.offset,
                               .master = view(StatePart::master),
                               .m = view(StatePart::m),
                               .v = view(StatePart::v)});
    }
  }
}

std::filesystem::path write(const RankContext& context, Communicator& link,
                            const StagedState& staged, const std::filesystem::path& checkpoints,
                            const RunState& state, const Keep& keep) {
  const Plan& plan = context.plan();
  std::vector<Parameter> model;
  for (const Layer& layer : plan.architecture.layers) {
    model.insert(model.end(), layer.parameters.begin(), layer.parameters.end());
  }
  return save_checkpoint(checkpoints, link, state, model, {plan.mesh.tp, context.coord().tp},
                         staged.pieces, keep);
}

}  // namespace voltapile
