#include "saver.hpp"

#include "voltapile/base/clock.hpp"

namespace voltapile {

Saver::~Saver() {
  if (thread_.joinable()) thread_.join();
}

void Saver::reserve() {
  if (copies_all() || pool_.bytes() > 0) return;
  pieces_ = pieces_of(context_);
  pool_ = context_.device().allocate_compute(save_size(context_.plan(), context_.coord().pp).pool,
                                             "checkpoint.pool", context_.host_pool());
}

void Saver::prepare() {
  VP_CHECK(!under_way(), "a checkpoint is begun over one that is being written");
  began_ = now_seconds();
  if (copies_all()) stage(context_, staged_);
  else reserve();
}

void Saver::start(const RunState& run, const Keep& keep) {
  VP_CHECK(!under_way(), "two checkpoints are written at once");
  if (!copies_all()) context_.hold().begin(context_.chunks());
  saved_ = {.step = run.step, .stall_seconds = now_seconds() - began_};
  fault_ = nullptr;
  ended_ = false;
  thread_ = std::thread([this, run, keep] {
    try {
      saved_.folder = write(run, keep);
    } catch (...) {
      fault_ = std::current_exception();
      saved_.seconds = now_seconds() - began_;
    }
    if (!copies_all()) context_.hold().release_all();  // if it failed before there was a pool
    saved_.update_seconds = copies_all() ? 0 : context_.hold().waited_seconds();
    ended_ = true;
  });
}

std::filesystem::path Saver::write(const RunState& run, const Keep& keep) {
  const Plan& plan = context_.plan();
  std::vector<Parameter> model;
  for (const Layer& layer : plan.architecture.layers)
    model.insert(model.end(), layer.parameters.begin(), layer.parameters.end());
  const PieceOwner owner{plan.mesh.tp, context_.coord().tp};
  const auto when_whole = [&] { saved_.seconds = now_seconds() - began_; };
  if (copies_all())
    return save_checkpoint(checkpoints_, link_, run, model, owner, staged_.pieces, keep, nullptr,
                           when_whole);
  StatePool values(context_, pieces_, pool_, before_write_);
  return save_checkpoint(checkpoints_, link_, run, model, owner, pieces_.pieces, keep, &values,
                         when_whole);
}

double Saver::seconds() const {
  if (!under_way()) return 0;
  return ended_ ? saved_.seconds : now_seconds() - began_;
}

std::string Saver::fault() const {
  if (!under_way() || !failed()) return "";
  try {
    std::rethrow_exception(fault_);
  } catch (const PeerFailure&) { return ""; } catch (const Error& error) {
    return error.what();
  } catch (...) { return ""; }
}

Saver::Saved Saver::finish() {
  VP_CHECK(under_way(), "no checkpoint is being written");
  thread_.join();
  if (fault_ == nullptr) return saved_;
  try {
    std::rethrow_exception(fault_);
  } catch (const PeerFailure&) { throw; } catch (const Error& error) {
    throw SharedError(error.code(), error.what());  // save_checkpoint throws it on all ranks
  }
}

}  // namespace voltapile
