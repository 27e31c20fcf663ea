#include "voltapile/train/predict.hpp"

#include "voltapile/checkpoint/checkpoint.hpp"
#include "voltapile/deck/parse.hpp"

#include "class_scores.hpp"
#include "loaded_model.hpp"
#include "prediction_files.hpp"
#include "predictor.hpp"

namespace voltapile {
namespace {

namespace fs = std::filesystem;

void make_folder(const fs::path& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error || !fs::is_directory(folder))
    throw Error(ExitCode::bad_input, format("--out {}: the folder cannot be made{}",
                                            folder.string(), error ? ": " + error.message() : ""));
}

}  // namespace

Deck deck_to_predict(const fs::path& checkpoint, const std::vector<std::string>& overrides,
                     int ranks) {
  const std::string name = format("deck of {}", checkpoint.filename().string());
  Deck deck = parse_deck(read_run_state(checkpoint).deck, name, overrides);
  if (ranks != 1 || ranks_of(deck) == 1) return deck;
  Deck::Parallel& p = deck.parallel;
  p.pipeline = p.data = p.tensor = p.chunks = 1;
  p.schedule = "gpipe";
  p.schedule_file.clear();
  return deck;
}

Predicted predict(const PredictRequest& request, std::unique_ptr<Communicator> world,
                  const TrainOptions& options) {
  const int ranks = world->size();
  Predicted predicted;
  const auto load = [&] {
    predicted.checkpoint = resolve_checkpoint(request.checkpoint);
    return deck_to_predict(predicted.checkpoint, request.overrides, ranks);
  };
  const auto open = [&](const Plan& plan, Communicator& all) {
    agree(all, [&] {
      if (all.rank() == 0) make_folder(request.out);
    });
    return open_everywhere(
        plan, all, [&] { return open_pictures(plan.deck, "pictures", request.pictures.string()); });
  };
  struct Work {
    explicit Work(LoadedModel& model) : predictor(model.context, model.pictures) {}
    Predictor predictor;
    Watch::Subject lanes;
  };
  const auto prepare = [&](LoadedModel& model) -> std::function<void()> {
    const auto work = std::make_shared<Work>(model);
    work->lanes = model.watch.observe(
        [shown = work.get()](RankState& state) { state.lanes = shown->predictor.lane_states(); });
    return [&, work] {
      const std::vector<Prediction> predictions = work->predictor.run(model.control);
      const Deck& deck = model.context.plan().deck;
      predicted.pictures = model.pictures.samples;
      predicted.step = model.stored.step;
      predicted.averaged = deck.optimizer.ema > 0;
      predicted.csv = request.out / "predictions.csv";
      predicted.h5 = request.out / "predictions.h5";
      if (model.control.rank() != 0) return;
      PredictionFacts facts{.checkpoint = model.checkpoint.string(),
                            .weights = predicted.averaged ? "averaged" : "master",
                            .pictures = request.pictures.string(),
                            .deck = model.stored.deck,
                            .step = model.stored.step,
                            .classes = deck.model.classes};
      VP_CHECK(model.pictures.source != nullptr, "rank 0 does not hold the first chunk");
      const Source& source = *model.pictures.source;
      for (int64_t i = 0; i < source.size() && !source.name(i).empty(); ++i)
        facts.paths.push_back(source.name(i));
      write_csv(predicted.csv, predictions, facts);
      write_h5(predicted.h5, predictions, facts);
    };
  };
  with_checkpoint(
      load, std::move(world), options, open, [&] { return predicted.checkpoint; }, prepare);
  return predicted;
}

}  // namespace voltapile
