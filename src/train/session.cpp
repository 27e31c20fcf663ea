#include "session.hpp"

#include <algorithm>
#include <set>
#include <thread>

#include "voltapile/base/host.hpp"
#include "voltapile/train/trainer.hpp"

namespace voltapile {

bool reads_pictures(const Plan& plan, int rank) {
  return plan.mesh.coord(rank).pp == plan.chunks.front().rank;
}
bool reads_labels(const Plan& plan, int rank) {
  return plan.mesh.coord(rank).pp == plan.chunks.back().rank;
}

int reading_threads(const Deck& deck) { return std::max(1, deck.data.workers); }

OpenedSource open_everywhere(const Plan& plan, Communicator& world,
                             const std::function<std::shared_ptr<const Source>()>& open) {
  OpenedSource opened;
  agree(world, [&] {
    if (reads_pictures(plan, world.rank()) || reads_labels(plan, world.rank()))
      opened.source = open();
  });
  for (const std::string& text :
       world.gather_text(std::to_string(opened.source == nullptr ? 0 : opened.source->size()))) {
    opened.samples = std::max<int64_t>(opened.samples, std::stoll(text));
  }
  return opened;
}

OpenedSource open_source_everywhere(const Plan& plan, Communicator& world, Part part) {
  if (part == Part::test && !has_test_part(plan.deck)) return {};
  return open_everywhere(plan, world, [&] { return open_source(plan.deck, part); });
}

BatchRing make_ring(const RankContext& context, const Phase& phase, int batches) {
  const Plan& plan = context.plan();
  const Deck::Model& model = plan.deck.model;
  const int rank = plan.mesh.rank(context.coord());
  const auto samples = static_cast<size_t>(phase.samples_per_step / plan.mesh.dp);
  const size_t pixels =
      samples * static_cast<size_t>(model.channels * model.image[0] * model.image[1]);
  BatchRing ring;
  for (int i = 0; i < batches; ++i) {
    BatchMemory batch;
    if (reads_pictures(plan, rank)) {
      ring.memory.push_back(context.device().allocate_host(pixels, "pictures"));
      batch.pictures = {reinterpret_cast<uint8_t*>(ring.memory.back().data()), pixels};
    }
    if (reads_labels(plan, rank)) {
      ring.memory.push_back(context.device().allocate_host(samples * sizeof(int32_t), "labels"));
      batch.labels = {reinterpret_cast<int32_t*>(ring.memory.back().data()), samples};
    }
    ring.batches.push_back(batch);
  }
  return ring;
}

int host_threads(const Deck& deck, Communicator& world) {
  if (deck.run.threads > 0) return deck.run.threads;
  const int cores = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  return std::max(1, cores / local_ranks(world.size()));
}

std::unique_ptr<Device> make_device(const Deck& deck, Communicator& world,
                                    const std::filesystem::path& run_dir) {
  if (deck.run.device == DeviceKind::cpu) return make_cpu_device(host_threads(deck, world));
  CudaOptions options{
      .local_rank = local_rank(world.rank()),
      .working = deck.precision.type,
      .tf32 = deck.precision.tf32,
      .kernels =
          deck.run.gpu_kernels == GpuKernels::volta ? KernelPath::volta : KernelPath::automatic,
  };
  if (!run_dir.empty())
    options.tuning_file = run_dir / "tuning" / format("rank_{:05}.txt", world.rank());
  if (const auto limit = deck.memory.device_limit_bytes)
    options.memory_limit_bytes = static_cast<size_t>(*limit);
  return make_cuda_device(options);
}

Links make_plan_links(const Plan& plan, std::unique_ptr<Communicator> world, Device& device,
                      Transport transport) {
  std::set<std::pair<int, int>> edges;
  for (size_t chunk = 1; chunk < plan.chunks.size(); ++chunk) {
    const int before = plan.chunks[chunk - 1].rank, here = plan.chunks[chunk].rank;
    if (before == here) continue;
    edges.insert({before, here});
    edges.insert({here, before});
  }
  return make_links(std::move(world), plan.mesh, {edges.begin(), edges.end()}, device, transport);
}

Evaluator::Evaluator(RankContext& context, OpenedSource test)
    : context_(context),
      test_(std::move(test)),
      engine_(context, context.plan().eval),
      ring_(make_ring(context, context.plan().eval, Plan::kEvaluationBatches)) {
  engine_.keep_lane_states();
}

std::vector<LaneState> evaluation_lanes(const Engine& engine) {
  std::vector<LaneState> states = engine.lane_states();
  for (LaneState& state : states) state.what = "evaluation's " + state.what;
  return states;
}

std::vector<LaneState> Evaluator::lane_states() const { return evaluation_lanes(engine_); }

std::unique_ptr<Loader> make_evaluation_loader(const RankContext& context,
                                               const OpenedSource& samples, const BatchRing& ring) {
  if (samples.source == nullptr) return nullptr;
  const Plan& plan = context.plan();
  const Deck::Model& model = plan.deck.model;
  const int64_t per_step = plan.eval.samples_per_step, per_rank = per_step / plan.mesh.dp;
  return std::make_unique<Loader>(samples.source,
                                  LoaderOptions{.seed = plan.deck.run.seed,
                                                .shuffle = false,
                                                .channels = model.channels,
                                                .height = model.image[0],
                                                .width = model.image[1],
                                                .samples_per_step = per_step,
                                                .rank_offset = context.coord().dp * per_rank,
                                                .rank_samples = per_rank,
                                                .first_sample = 0,
                                                .end_sample = samples.samples,
                                                .workers = reading_threads(plan.deck)},
                                  ring.batches);
}

EvalRecord Evaluator::run(int64_t step) {
  const Plan& plan = context_.plan();
  const int64_t per_step = plan.eval.samples_per_step, per_rank = per_step / plan.mesh.dp;
  const int64_t steps = (test_.samples + per_step - 1) / per_step;
  const std::unique_ptr<Loader> loader = make_evaluation_loader(context_, test_, ring_);
  for (int64_t i = 0; i < steps; ++i) {
    const int64_t first = i * per_step + context_.coord().dp * per_rank;
    const int64_t valid = std::clamp<int64_t>(test_.samples - first, 0, per_rank);
    engine_.issue_evaluation(loader ? loader->next() : ring_.batches.front(), valid);
    if (loader) loader->release();
  }
  const Engine::Totals totals = engine_.take_totals();
  const auto n = static_cast<double>(test_.samples);
  return {step, totals.loss / n, totals.top1 / n, totals.top5 / n, test_.samples};
}

}  // namespace voltapile
