#include "predictor.hpp"

#include <algorithm>

#include "class_scores.hpp"

namespace voltapile {

Predictor::Predictor(RankContext& context, OpenedSource pictures)
    : context_(context),
      pictures_(std::move(pictures)),
      engine_(context, context.plan().eval),
      ring_(make_ring(context, context.plan().eval, Plan::kEvaluationBatches)) {
  engine_.keep_lane_states();
  if (!context.has_last_chunk()) return;
  const Plan& plan = context.plan();
  const Phase& phase = plan.eval;
  local_classes_ = plan.architecture.local_classes(plan.mesh.tp);
  const Shape shape{phase.shape.micros, phase.sizes.micro, local_classes_};
  const auto bytes = static_cast<size_t>(shape.elements()) * sizeof(float);
  logits_ = context.device().allocate(bytes, "logits");
  on_host_ = context.device().allocate_host(bytes, "logits");
  engine_.keep_logits({logits_.data(), DType::f32, shape});
}

std::vector<LaneState> Predictor::lane_states() const { return evaluation_lanes(engine_); }

// The scores of the samples below `valid` of the step that has just run, as bytes.
std::string Predictor::score_step(int64_t first_picture, int64_t valid) {
  std::string bytes;
  if (!context_.has_last_chunk()) return bytes;
  Device& device = context_.device();
  Stream& stream = device.stream(Lane::compute);
  device.copy(on_host_.data(), logits_.data(), logits_.bytes(), stream);
  device.wait_on_host(device.record(stream));
  const auto* const logits = reinterpret_cast<const float*>(on_host_.data());
  const int64_t first_class = context_.coord().tp * local_classes_;
  const int64_t held =
      std::clamp<int64_t>(context_.plan().deck.model.classes - first_class, 0, local_classes_);
  for (int64_t i = 0; i < valid; ++i)
    append_scores(score_classes({logits + i * local_classes_, static_cast<size_t>(held)},
                                static_cast<int32_t>(first_class), first_picture + i),
                  bytes);
  return bytes;
}

std::vector<Prediction> Predictor::run(Communicator& control) {
  const Plan& plan = context_.plan();
  const int64_t per_step = plan.eval.samples_per_step, per_rank = per_step / plan.mesh.dp;
  const std::unique_ptr<Loader> loader = make_evaluation_loader(context_, pictures_, ring_);
  std::vector<Prediction> predictions;
  for (int64_t begin = 0; begin < pictures_.samples; begin += per_step) {
    const int64_t first = begin + context_.coord().dp * per_rank;
    const int64_t valid = std::clamp<int64_t>(pictures_.samples - first, 0, per_rank);
    engine_.issue_evaluation(loader ? loader->next() : ring_.batches.front(), valid);
    if (loader) loader->release();
    const std::vector<std::string> texts = control.gather_text(score_step(first, valid));
    if (control.rank() != 0) continue;
    for (int dp = 0; dp < plan.mesh.dp; ++dp) {
      std::vector<std::vector<ClassScores>> parts;  // by tensor rank
      for (int tp = 0; tp < plan.mesh.tp; ++tp) {
        const int rank = plan.mesh.rank({plan.chunks.back().rank, dp, tp});
        parts.push_back(read_scores(texts[static_cast<size_t>(rank)]));
      }
      for (size_t i = 0; i < parts.front().size(); ++i) {
        std::vector<ClassScores> of_one;
        for (const std::vector<ClassScores>& part : parts) of_one.push_back(part[i]);
        predictions.push_back(predict_class(of_one));
      }
    }
  }
  return predictions;
}

}  // namespace voltapile
