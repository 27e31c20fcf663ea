#include "saver.hpp"

#include "voltapile/base/clock.hpp"

namespace voltapile {

Saver::~Saver() {
  if (thread_.joinable()) thread_.join();
}

void Saver::copy() {
  VP_CHECK(!under_way(), "a checkpoint is copied over one that is being written");
  began_ = now_seconds();
  stage(context_, staged_);
}

void Saver::start(const RunState& run, const Keep& keep) {
  VP_CHECK(!under_way(), "two checkpoints are written at once");
  saved_ = {.folder = {}, .step = run.step, .stall_seconds = now_seconds() - began_, .seconds = 0};
  fault_ = nullptr;
  ended_ = false;
  thread_ = std::thread([this, run, keep] {
    try {
      saved_.folder = write(context_, link_, staged_, checkpoints_, run, keep);
    } catch (...) { fault_ = std::current_exception(); }
    saved_.seconds = now_seconds() - began_;
    ended_ = true;
  });
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
