// The commands that show pictures to a checkpoint's weights. Collective over the session's world.
#pragma once
#include <string>

#include "voltapile/base/error.hpp"
#include "voltapile/comm/mpi.hpp"
#include "voltapile/train/predict.hpp"
#include "voltapile/train/trainer.hpp"

namespace voltapile {

// `named`: a step folder or a run folder; empty stands for the deck's run.
ExitCode evaluate_checkpoint(const DeckLoader& load, const std::string& named, MpiSession& session);
ExitCode predict_pictures(const PredictRequest& request, MpiSession& session);

}  // namespace voltapile
