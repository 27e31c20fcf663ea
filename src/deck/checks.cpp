#include "checks.hpp"

#include "voltapile/base/format.hpp"

namespace voltapile {

namespace {

// False for a part of 0: a value that is missing or was refused.
bool divides(int64_t part, int64_t whole) { return part > 0 && whole % part == 0; }

// The divisor of `whole` nearest to `wanted`, for "use ...".
int64_t near_divisor(int64_t whole, int64_t wanted) {
  for (int64_t step = 0; wanted > 0 && step < whole; ++step) {
    if (wanted > step && whole % (wanted - step) == 0) return wanted - step;
    if (wanted + step <= whole && whole % (wanted + step) == 0) return wanted + step;
  }
  return 1;
}

void check_model(const Deck::Model& m, const Report& report) {
  if (!divides(m.heads, m.dim))
    report(
        "model.heads", {"model.dim"},
        format("a divisor of model.dim = {}, for example {}", m.dim, near_divisor(m.dim, m.heads)));
  for (const size_t side : {size_t{0}, size_t{1}}) {
    if (divides(m.patch[side], m.image[side])) continue;
    report("model.patch", {"model.image"},
           format("{} {} must divide the image's {} {}; for example {}",
                  side == 0 ? "height" : "width", m.patch[side], side == 0 ? "height" : "width",
                  m.image[side], near_divisor(m.image[side], m.patch[side])));
    break;  // a square slip is one slip
  }
  if (m.position == Position::sine2d && m.dim % 4 != 0)
    report("model.position", {"model.dim"},
           format("\"sine2d\" needs model.dim = {} to be a multiple of 4", m.dim));
}

void check_schedule(const Deck::Parallel& p, const Report& report) {
  if (p.schedule == "file" && p.schedule_file.empty())
    report("parallel.schedule", {"parallel.schedule_file"},
           "\"file\" needs parallel.schedule_file, the file that holds the schedule");
  if (p.schedule != "file" && !p.schedule_file.empty())
    report(
        "parallel.schedule_file", {"parallel.schedule"},
        format("leave it out, or set parallel.schedule = \"file\" instead of \"{}\"", p.schedule));
  const bool one_chunk =
      p.schedule == "gpipe" || p.schedule == "1f1b" || p.schedule == "zero_bubble_h1";
  if (one_chunk && p.chunks > 1)
    report("parallel.chunks", {"parallel.schedule"},
           format("schedule \"{}\" takes 1 chunk a rank; for more use \"interleaved\" or "
                  "\"breadth_first\"",
                  p.schedule));
}

void check_transport(const Deck& deck, const Report& report) {
  if (deck.parallel.transport == Transport::nccl && deck.run.device == DeviceKind::cpu)
    report("parallel.transport", {"run.device"},
           "\"nccl\" is for GPUs, and run.device is \"cpu\"; leave it out, or set \"auto\"");
}

void check_data(const Deck& deck, const Report& report) {
  const auto& d = deck.data;
  const auto channels = static_cast<size_t>(deck.model.channels);
  if (d.mean.size() != channels)
    report("data.mean", {"model.channels"},
           format("one number for each of model.channels = {}", channels));
  if (d.std.size() != channels)
    report("data.std", {"model.channels"},
           format("one number for each of model.channels = {}", channels));
  if (d.format != DataFormat::synthetic && d.train.empty())
    report("data.train", {"data.format"},
           "this format needs the training pictures' file or folder");
  if (d.format != DataFormat::idx) return;
  if (!d.train.empty() && d.train_labels.empty())
    report("data.train_labels", {"data.train"},
           "give the labels' file: data.train has no \"images-idx3\" in its name to replace");
  if (!d.test.empty() && d.test_labels.empty())
    report("data.test_labels", {"data.test"},
           "give the labels' file: data.test has no \"images-idx3\" in its name to replace");
}

}  // namespace

void check_rules(const Deck& deck, const Report& report) {
  if (deck.run.steps && deck.run.epochs)
    report("run.epochs", {"run.steps"}, "give run.steps or run.epochs, not both");
  if (!deck.run.steps && !deck.run.epochs)
    report("run.steps", {"run.epochs"}, "required: give run.steps or run.epochs");
  check_model(deck.model, report);
  check_schedule(deck.parallel, report);
  check_transport(deck, report);
  if (deck.batch.micro > deck.batch.global)
    report("batch.micro", {"batch.global"}, format("at most batch.global = {}", deck.batch.global));
  const auto& p = deck.precision;
  if (p.type != DType::f16 && !p.loss_scale)
    report("precision.loss_scale", {"precision.type"},
           "\"dynamic\" is for type \"f16\"; leave it out, or give a number such as 1");
  if (deck.optimizer.min_lr > deck.optimizer.lr)
    report("optimizer.min_lr", {"optimizer.lr"},
           format("at most optimizer.lr = {}", deck.optimizer.lr));
  check_data(deck, report);
}

}  // namespace voltapile
