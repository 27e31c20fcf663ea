#include <algorithm>
#include <set>

#include "advice.hpp"
#include "gpus.hpp"

namespace voltapile {
namespace {

double mean_over_ranks(const Analysis& analysis, double RankShare::*share) {
  double sum = 0;
  for (const RankShare& rank : analysis.ranks) sum += rank.*share;
  return analysis.ranks.empty() ? 0 : sum / static_cast<double>(analysis.ranks.size());
}

void add_trace(Facts& facts, const Analysis& analysis, const Plan& plan) {
  facts.traced = true;
  facts.bubble = analysis.bubble.value_or(0);
  facts.exposed_reduction = mean_over_ranks(analysis, &RankShare::exposed_reduction);
  facts.data_wait = mean_over_ranks(analysis, &RankShare::data_wait);
  facts.optimizer = mean_over_ranks(analysis, &RankShare::optimizer);
  facts.issue = mean_over_ranks(analysis, &RankShare::issue);
  facts.compute_busy = analysis.compute_busy;
  double wall = 0, recompute = 0;
  for (const RankShare& rank : analysis.ranks) wall += rank.wall_seconds;
  for (const OperationShare& operation : analysis.operations)
    if (operation.name == static_cast<int32_t>(Op::recompute)) recompute += operation.seconds;
  facts.recompute = wall > 0 ? recompute / wall : 0;
  for (const RankShare& rank : analysis.ranks) {
    if (rank.compute_flops > 0)
      facts.speeds.push_back({rank.place, rank.host, rank.compute_seconds / rank.compute_flops});
  }
  const Mesh& mesh = plan.mesh;
  for (int group = 0; mesh.tp > 1 && group < mesh.size() / mesh.tp; ++group) {
    std::set<std::string> hosts;
    std::vector<std::string> members;
    for (int tp = 0; tp < mesh.tp; ++tp) {
      const RankShare& rank = analysis.ranks[static_cast<size_t>(group * mesh.tp + tp)];
      hosts.insert(rank.host);
      members.push_back(format("{} on {}", rank.place, rank.host));
    }
    if (hosts.size() > 1) facts.split_tensor_groups.push_back(join(members, ", "));
  }
}

double bytes_without_recompute(const Plan& plan) {
  Deck deck = plan.deck;
  deck.memory.recompute = Recompute::none;
  const Plan other = make_plan(deck);
  size_t most = 0;
  for (int pp = 0; pp < other.mesh.pp; ++pp) most = std::max(most, other.device_bytes(pp));
  return static_cast<double>(most);
}

}  // namespace

Facts facts_of(const Run& run) {
  const Plan& plan = run.plan;
  const Deck& deck = plan.deck;
  Facts facts{
      .pipeline = plan.mesh.pp,
      .data = plan.mesh.dp,
      .tensor = plan.mesh.tp,
      .schedule = deck.parallel.schedule,
      .chunks = deck.parallel.chunks,
      .most_chunks = std::max<int64_t>(1, deck.model.depth / plan.mesh.pp),
      .micros = plan.train.shape.micros,
      .micro = deck.batch.micro,
      .global = deck.batch.global,
      .tokens = plan.architecture.tokens(),
      .pool = deck.model.pool,
      .type = deck.precision.type,
      .device = deck.run.device,
      .workers = std::max(1, deck.data.workers),
      .zero = deck.optimizer.zero,
      .gradients_reduced_in_f32 =
          plan.gradient_store == DType::f32 && bytes_of(deck.precision.type) == 2,
  };
  if (run.analysis) add_trace(facts, *run.analysis, plan);
  if (const auto gpus = run.trace ? gpu_figures(*run.trace, deck.batch.global) : std::nullopt) {
    facts.gpu_busy = gpus->utilisation;
    facts.sm_activity = gpus->sm_activity;
  }
  if (deck.memory.device_limit_bytes && deck.memory.recompute != Recompute::none) {
    facts.device_limit = static_cast<double>(*deck.memory.device_limit_bytes);
    facts.device_bytes_without_recompute = bytes_without_recompute(plan);
  }
  const std::vector<TrainRecord>& train = run.metrics.train;
  const size_t from = train.size() - std::min(train.size(), kScaleWindow);
  const bool dynamic = deck.precision.type == DType::f16 && !deck.precision.loss_scale;
  for (size_t i = from; i < train.size(); ++i) {
    if (dynamic) facts.loss_scales.push_back(train[i].loss_scale);
    facts.skipped += train[i].skipped;
    ++facts.steps;
  }
  return facts;
}

}  // namespace voltapile
