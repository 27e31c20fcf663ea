#include "voltapile/train/trainer.hpp"

#include "loaded_model.hpp"

namespace voltapile {

EvalRecord evaluate(const DeckLoader& load, std::unique_ptr<Communicator> world,
                    const TrainOptions& options, const CheckpointNamer& checkpoint_of) {
  TrainOptions checked = options;
  checked.check = [&](const Plan& plan) {
    if (options.check) options.check(plan);
    if (!has_test_part(plan.deck)) {
      throw Error(ExitCode::bad_input, format("{}: there is nothing to evaluate on: data.test (or "
                                              "data.synthetic_test) is empty",
                                              plan.deck.path));
    }
  };
  struct Work {
    explicit Work(LoadedModel& model) : evaluator(model.context, model.pictures) {}
    Evaluator evaluator;
    Watch::Subject lanes;
  };
  EvalRecord record;
  const auto open = [](const Plan& plan, Communicator& all) {
    return open_source_everywhere(plan, all, Part::test);
  };
  const auto prepare = [&](LoadedModel& model) -> std::function<void()> {
    const auto work = std::make_shared<Work>(model);
    work->lanes = model.watch.observe(
        [shown = work.get()](RankState& state) { state.lanes = shown->evaluator.lane_states(); });
    return [&record, &model, work] { record = work->evaluator.run(model.stored.step); };
  };
  with_checkpoint(load, std::move(world), checked, open, checkpoint_of, prepare);
  return record;
}

}  // namespace voltapile
