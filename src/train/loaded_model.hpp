// Private to train: a checkpoint's weights on all ranks, to be shown pictures.
#pragma once
#include <filesystem>
#include <functional>
#include <memory>

#include "voltapile/checkpoint/checkpoint.hpp"
#include "voltapile/train/trainer.hpp"
#include "voltapile/watch/watch.hpp"

#include "session.hpp"

namespace voltapile {

struct LoadedModel {
  RankContext& context;
  Communicator& control;
  Watch& watch;
  OpenedSource pictures;
  std::filesystem::path checkpoint;
  RunState stored;
};

// Collective; in this order: makes the plan of the deck, opens pictures, looks at the checkpoint
// for damage, loads its weights, calls `prepare` and then what that returned, which may fail on one
// rank alone. What `prepare` captures in it lives until no lane runs. Of the options, `check`,
// `watch` and `facts` count.
using OpenPictures = std::function<OpenedSource(const Plan&, Communicator&)>;
using Prepare = std::function<std::function<void()>(LoadedModel&)>;
void with_checkpoint(const DeckLoader& load, std::unique_ptr<Communicator> world,
                     const TrainOptions& options, const OpenPictures& open,
                     const CheckpointNamer& checkpoint_of, const Prepare& prepare);

}  // namespace voltapile
