// Private to train: the forward pass over all pictures of a source, and what each rank's part of
// the classes says, gathered on rank 0.
#pragma once
#include <vector>

#include "voltapile/train/predict.hpp"

#include "session.hpp"

namespace voltapile {

class Predictor {
 public:
  Predictor(RankContext& context, OpenedSource pictures);
  // Of all pictures in their order, on rank 0; nothing on the others. Collective over `control`.
  std::vector<Prediction> run(Communicator& control);
  // As Evaluator's.
  std::vector<LaneState> lane_states() const;

 private:
  std::string score_step(int64_t first_picture, int64_t valid);

  RankContext& context_;
  OpenedSource pictures_;
  Engine engine_;
  BatchRing ring_;
  int64_t local_classes_ = 0;  // with padding
  Buffer logits_;              // (samples of a step of this data rank, local classes) f32
  Buffer on_host_;             // the same
};

}  // namespace voltapile
