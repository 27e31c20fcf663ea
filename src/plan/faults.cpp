#include "faults.hpp"

#include <algorithm>
#include <limits>

#include "voltapile/architecture/architecture.hpp"
#include "voltapile/base/error.hpp"
#include "voltapile/deck/parse.hpp"
#include "voltapile/plan/plan.hpp"

namespace voltapile {
namespace {

// "1, 2 or 4": the divisors of every number in `wholes`, the nearest to `wanted` where there are
// many.
std::string common_divisors(std::initializer_list<int64_t> wholes, int64_t wanted) {
  const int64_t most = *std::min_element(wholes.begin(), wholes.end());
  std::vector<int64_t> all;
  for (int64_t d = 1; d <= most; ++d)
    if (std::all_of(wholes.begin(), wholes.end(), [d](int64_t w) { return w % d == 0; }))
      all.push_back(d);
  constexpr size_t kShown = 4;
  std::stable_sort(all.begin(), all.end(), [wanted](int64_t a, int64_t b) {
    return std::abs(a - wanted) < std::abs(b - wanted);
  });
  if (all.size() > kShown) all.resize(kShown);
  std::sort(all.begin(), all.end());
  std::string text;
  for (size_t i = 0; i < all.size(); ++i)
    text += (i == 0 ? "" : i + 1 == all.size() ? " or " : ", ") + std::to_string(all[i]);
  return text;
}

void check_world(const Deck& deck, int world_size, Faults& faults) {
  const auto& p = deck.parallel;
  const int64_t needed = int64_t{p.pipeline} * p.data * p.tensor;
  if (world_size == 0 || world_size == needed) return;
  faults.add(
      "parallel.pipeline, data, tensor", format("{} x {} x {}", p.pipeline, p.data, p.tensor),
      format("this mesh needs {} rank{} and there {} {}: start with `mpirun -n {}`, or change "
             "the three so that their product is {}",
             needed, needed == 1 ? "" : "s", world_size == 1 ? "is" : "are", world_size, needed,
             world_size));
}

void check_model(const Deck& deck, Faults& faults) {
  const auto& m = deck.model;
  const int64_t tp = deck.parallel.tensor;
  for (size_t side = 0; side < 2; ++side) {
    if (m.image[side] % m.patch[side] == 0) continue;
    faults.add("model.patch", format("[{}, {}]", m.patch[0], m.patch[1]),
               format("does not divide model.image = [{}, {}]: use {}", m.image[0], m.image[1],
                      common_divisors({m.image[side]}, m.patch[side])));
    break;
  }
  if (m.dim % m.heads != 0)
    faults.add(
        "model.heads", std::to_string(m.heads),
        format("does not divide model.dim = {}: use {}", m.dim, common_divisors({m.dim}, m.heads)));
  if (m.heads % tp != 0)
    faults.add("parallel.tensor", std::to_string(tp),
               format("does not divide model.heads = {}: use {}, or change model.heads", m.heads,
                      common_divisors({m.heads, m.mlp}, tp)));
  if (m.mlp % tp != 0)
    faults.add("parallel.tensor", std::to_string(tp),
               format("does not divide model.mlp = {}: use {}, or change model.mlp", m.mlp,
                      common_divisors({m.heads, m.mlp}, tp)));
}

void check_batch(const Deck& deck, Faults& faults) {
  const auto& b = deck.batch;
  const int64_t unit = b.micro * deck.parallel.data;
  if (b.global % unit == 0) {
    constexpr int64_t kMost = std::numeric_limits<int16_t>::max();
    if (b.global / unit > kMost)
      faults.add(
          "batch.micro", std::to_string(b.micro),
          format("cuts batch.global = {} into {} micro-batches on each data rank, and {} is "
                 "the most: use at least {}",
                 b.global, b.global / unit, kMost,
                 (b.global + kMost * deck.parallel.data - 1) / (kMost * deck.parallel.data)));
    return;
  }
  const int64_t below = b.global / unit * unit;
  const std::string nearest =
      below == 0 ? std::to_string(unit) : format("{} or {}", below, below + unit);
  faults.add("batch.global", std::to_string(b.global),
             format("is not a multiple of batch.micro x parallel.data = {} x {} = {}: use {}",
                    b.micro, deck.parallel.data, unit, nearest));
}

void check_chunks(const Deck& deck, Faults& faults) {
  const auto& p = deck.parallel;
  const int64_t chunks = int64_t{p.pipeline} * p.chunks;
  if (chunks <= deck.model.depth) return;
  const std::string fix =
      p.pipeline <= deck.model.depth
          ? format("set parallel.chunks to {} at most", deck.model.depth / p.pipeline)
          : format("set parallel.pipeline to {} at most", deck.model.depth);
  faults.add("parallel.chunks", std::to_string(p.chunks),
             format("parallel.pipeline x chunks = {} x {} = {} chunks for model.depth = {} blocks, "
                    "and each chunk needs one: {}",
                    p.pipeline, p.chunks, chunks, deck.model.depth, fix));
}

void check_sequence(const Deck& deck, Faults& faults) {
  const auto& m = deck.model;
  const int64_t tp = deck.parallel.tensor;
  if (deck.parallel.sequence != Sequence::on || tp == 1) return;
  const int64_t tokens =
      (m.image[0] / m.patch[0]) * (m.image[1] / m.patch[1]) + (m.pool == Pool::token ? 1 : 0);
  const int64_t rows = deck.batch.micro * tokens;
  if (rows % tp == 0) return;
  faults.add("parallel.sequence", "true",
             format("batch.micro x tokens = {} x {} = {} rows are not a multiple of "
                    "parallel.tensor = {}: make batch.micro a multiple of {}, or use \"auto\"",
                    deck.batch.micro, tokens, rows, tp, tp));
}

void check_homes(const Deck& deck, Faults& faults) {
  const auto& memory = deck.memory;
  if (memory.weights != Home::device && memory.optimizer == Home::device)
    faults.add("memory.weights", memory.weights == Home::host ? "\"host\"" : "\"nvme\"",
               "the optimizer updates weights at their home, and memory.optimizer = \"device\" is "
               "elsewhere: set memory.optimizer to \"host\" or \"nvme\", or memory.weights to "
               "\"device\"");
  const auto needs_dir = [&](const std::string& key, Home home) {
    if (home == Home::nvme && memory.nvme_dir.empty())
      faults.add(key, "\"nvme\"",
                 "needs memory.nvme_dir, a folder on a fast disk of each machine that runs a rank");
  };
  needs_dir("memory.optimizer", memory.optimizer);
  if (deck.optimizer.moments == MomentStore::int8 && memory.optimizer == Home::device)
    faults.add("optimizer.moments", "\"int8\"",
               "is for an optimizer on the host: set memory.optimizer to \"host\" or \"nvme\"");
  needs_dir("memory.weights", memory.weights);
  if (deck.optimizer.clip_norm_from == ClipNorm::previous_step && deck.precision.type == DType::f16)
    faults.add(
        "optimizer.clip_norm_from", "\"previous_step\"",
        "a step whose f16 gradients overflow could not be skipped any more: use \"this_step\", "
        "or precision.type \"bf16\" or \"f32\"");
}

// The name that a pattern without a match is likely to stand for.
std::string likely_name(const std::string& pattern, const std::vector<std::string>& names) {
  const std::string similar = nearest(pattern, names);
  if (!similar.empty()) return similar;
  const auto common = [&](const std::string& name) {
    const size_t most = std::min(pattern.size(), name.size());
    return std::mismatch(pattern.begin(), pattern.begin() + static_cast<std::ptrdiff_t>(most),
                         name.begin())
               .first -
           pattern.begin();
  };
  return *std::max_element(
      names.begin(), names.end(),
      [&](const std::string& a, const std::string& b) { return common(a) < common(b); });
}

void check_freeze(const Deck& deck, Faults& faults) {
  const std::vector<std::string>& patterns = deck.optimizer.freeze;
  if (patterns.empty()) return;
  const Architecture a = make_architecture(deck);
  std::vector<std::string> names;
  bool any_updated = false;
  for (const Layer& layer : a.layers)
    for (const Parameter& p : layer.parameters) {
      names.push_back(p.name);
      any_updated |= p.is_updated();
    }
  for (const std::string& pattern : patterns) {
    const bool matches = std::any_of(names.begin(), names.end(), [&](const std::string& name) {
      return is_named_by(pattern, name);
    });
    if (!matches)
      faults.add("optimizer.freeze", '"' + pattern + '"',
                 format("names no parameter of this model; the nearest is \"{}\"",
                        likely_name(pattern, names)));
  }
  if (!any_updated)
    faults.add("optimizer.freeze", "[\"" + join(patterns, "\", \"") + "\"]",
               "leaves nothing to train: leave the head out, say with \"blocks.*\"");
}

}  // namespace

void Faults::add(const std::string& key, std::string_view value, std::string_view text) {
  const std::string place = deck_.path.empty() ? "" : deck_.place(key) + ": ";
  lines_.push_back(format("{}{} = {}: {}", place, key, value, text));
}

void Faults::throw_if_any() const {
  if (!lines_.empty()) throw Error(ExitCode::bad_input, join(lines_, "\n"));
}

void check_numbers(const Deck& deck, int world_size, Faults& faults) {
  check_world(deck, world_size, faults);
  check_model(deck, faults);
  check_batch(deck, faults);
  check_chunks(deck, faults);
  check_sequence(deck, faults);
  check_homes(deck, faults);
  check_freeze(deck, faults);
}

}  // namespace voltapile
