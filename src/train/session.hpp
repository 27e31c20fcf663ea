// Private to train: what training and evaluation both need of one rank, built in the order in which
// it depends.
#pragma once
#include <filesystem>
#include <functional>
#include <memory>
#include <vector>

#include "voltapile/comm/communicator.hpp"
#include "voltapile/comm/transport.hpp"
#include "voltapile/data/data.hpp"
#include "voltapile/train/engine.hpp"
#include "voltapile/train/metrics.hpp"

namespace voltapile {

// Samples of a source, on every rank (ranks without pictures or labels ask the others). Collective.
struct OpenedSource {
  std::shared_ptr<const Source> source;  // null where this rank reads neither pictures nor labels
  int64_t samples = 0;
};
OpenedSource open_everywhere(const Plan& plan, Communicator& world,
                             const std::function<std::shared_ptr<const Source>()>& open);
OpenedSource open_source_everywhere(const Plan& plan, Communicator& world, Part part);

// Threads of one rank that read pictures: data.workers, or one.
int reading_threads(const Deck& deck);

// Which data a rank reads.
bool reads_pictures(const Plan& plan, int rank);
bool reads_labels(const Plan& plan, int rank);

// Host memory for `ring` batches of one data rank, and a loader over it (null without a source).
struct BatchRing {
  std::vector<Buffer> memory;
  std::vector<BatchMemory> batches;
};
BatchRing make_ring(const RankContext& context, const Phase& phase, int batches);
// Fills `ring`, made for the evaluation phase, with every sample once; null where this rank reads
// none.
std::unique_ptr<Loader> make_evaluation_loader(const RankContext& context,
                                               const OpenedSource& samples, const BatchRing& ring);
// What the lanes of an engine that evaluates are at.
std::vector<LaneState> evaluation_lanes(const Engine& engine);

// CPU threads of one rank: run.threads, or this machine's cores divided among its ranks.
int host_threads(const Deck& deck, Communicator& world);
// The device that the deck names. What it learns about this machine is kept in `run_dir`, if
// that is given.
std::unique_ptr<Device> make_device(const Deck& deck, Communicator& world,
                                    const std::filesystem::path& run_dir);
// Links for this plan's mesh and chunk table.
Links make_plan_links(const Plan& plan, std::unique_ptr<Communicator> world, Device& device,
                      Transport transport);

// Evaluation of the weights now in `context`; every picture counted once. Collective.
class Evaluator {
 public:
  Evaluator(RankContext& context, OpenedSource test);
  EvalRecord run(int64_t step);
  // As Engine's.
  std::vector<LaneState> lane_states() const;

 private:
  RankContext& context_;
  OpenedSource test_;
  Engine engine_;
  BatchRing ring_;
};

}  // namespace voltapile
