#include "voltapile/plan/plan.hpp"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>

#include "voltapile/base/error.hpp"

#include "buffers.hpp"
#include "faults.hpp"

namespace voltapile {
namespace {

namespace fs = std::filesystem;

// Blocks as evenly as possible. Longer chunks come from the second on: the first holds the
// embedding and the last the head besides.
std::vector<Chunk> spread_layers(const Deck& deck, const Architecture& a, const ChunkTable& table) {
  const int depth = static_cast<int>(deck.model.depth), count = table.chunks();
  const int shortest = depth / count, longer = depth % count;
  const int first_longer = longer == count - 1 ? 0 : 1;
  std::vector<Chunk> chunks;
  int next = 1;  // layer 0 is the embedding
  for (int c = 0; c < count; ++c) {
    const bool is_longer = c >= first_longer && c < first_longer + longer;
    const int blocks = shortest + (is_longer ? 1 : 0);
    Chunk chunk;
    chunk.first_layer = c == 0 ? 0 : next;
    next += blocks;
    chunk.end_layer = c == count - 1 ? next + 1 : next;
    chunk.rank = table.rank_of[static_cast<size_t>(c)];
    if (deck.memory.recompute == Recompute::layers)
      chunk.segment_layers = static_cast<int>(
          std::min<int64_t>(deck.memory.checkpoint_every.value_or(blocks), blocks));
    // A shard of each data rank starts where the kernels' vectors do.
    chunk.parameters = flat_layout(a, chunk.first_layer, chunk.end_layer, deck.parallel.tensor,
                                   64 * deck.parallel.data);
    chunks.push_back(std::move(chunk));
  }
  return chunks;
}

bool rows_divide(const Architecture& a, int64_t micro, int tp) {
  return micro * a.tokens() % tp == 0;
}

// Turns what is automatic into what it becomes, and says so.
void resolve(Plan& plan) {
  Deck& deck = plan.deck;
  const Architecture& a = plan.architecture;
  const int tp = deck.parallel.tensor;
  auto& notes = plan.notes;

  const bool rows = rows_divide(a, deck.batch.micro, tp);
  const std::string why = tp == 1 ? "there is one tensor rank"
                                  : format("{} x {} = {} rows on {} tensor ranks", deck.batch.micro,
                                           a.tokens(), deck.batch.micro * a.tokens(), tp);
  switch (deck.parallel.sequence) {
    case Sequence::automatic:
      plan.sequence = tp > 1 && rows;
      notes.push_back(format("parallel.sequence = \"auto\" became {}: {}", plan.sequence, why));
      break;
    case Sequence::on:
      plan.sequence = tp > 1;
      if (tp == 1) notes.push_back("parallel.sequence = true divides nothing with tensor = 1");
      break;
    case Sequence::off: plan.sequence = false; break;
  }
  deck.parallel.sequence = plan.sequence ? Sequence::on : Sequence::off;

  const bool away = deck.memory.optimizer != Home::device;
  const bool automatic = deck.memory.gradients == GradientStore::automatic;
  if (automatic) deck.memory.gradients = away ? GradientStore::working : GradientStore::f32;
  plan.gradient_store = deck.memory.gradients == GradientStore::working
                            ? deck.precision.type
                            : accumulate_type(deck.precision.type);
  if (automatic && away)
    notes.push_back(
        format("memory.gradients = \"auto\" became \"working\": {}, since the optimizer "
               "is not on the device",
               name_of(plan.gradient_store)));
  else if (automatic)
    notes.push_back(
        "memory.gradients = \"auto\" became \"f32\", since the optimizer is on the device");
  plan.reduced_in_place = away || (plan.gradient_store == accumulate_type(deck.precision.type) &&
                                   (deck.optimizer.zero == 0 || deck.parallel.data == 1));

  plan.weights_in_place =
      away && deck.memory.weights == Home::device && plan.gradient_store == deck.precision.type;

  if (deck.eval.batch == 0) deck.eval.batch = deck.batch.micro;
}

void note_consequences(Plan& plan) {
  const Deck& deck = plan.deck;
  const int tp = deck.parallel.tensor;
  auto& notes = plan.notes;
  if (deck.memory.recompute == Recompute::layers) {
    int longest = 0;
    for (const Chunk& chunk : plan.chunks) longest = std::max(longest, chunk.segment_layers);
    const auto& every = deck.memory.checkpoint_every;
    notes.push_back(
        format("memory.checkpoint_every = {}: segments of up to {} layer{} are "
               "recomputed{}",
               every ? std::to_string(*every) : "\"chunk\"", longest, longest == 1 ? "" : "s",
               every && *every > longest ? ", all that a chunk has" : ""));
  }
  if (plan.architecture.local_classes(tp) * tp != deck.model.classes)
    notes.push_back(
        format("model.classes = {} is padded to {} in buffers: {} on each of {} tensor "
               "ranks",
               deck.model.classes, plan.architecture.local_classes(tp) * tp,
               plan.architecture.local_classes(tp), tp));
  if (deck.optimizer.zero == 1 && deck.parallel.data == 1)
    notes.push_back("optimizer.zero = 1 divides nothing with data = 1");
  if (bytes_of(deck.precision.type) >= 4)
    notes.push_back("master weights are kept beside the working weights, also where both are f32");
}

std::optional<std::string> read_text(const std::string& path, Faults& faults) {
  std::error_code error;
  std::ifstream file(path, std::ios::binary);
  if (fs::is_directory(path, error) || !file) {
    faults.add("parallel.schedule_file", '"' + path + '"',
               fs::exists(path, error) ? "cannot be read: give a text file"
                                       : "no such file: give the path of a schedule, relative to "
                                         "the deck's folder");
    return std::nullopt;
  }
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

std::vector<Program> programs_of_file(const Deck& deck, const ScheduleShape& shape,
                                      Faults& faults) {
  const std::string& path = deck.parallel.schedule_file;
  if (path.empty()) {
    faults.add("parallel.schedule", "\"file\"",
               "needs parallel.schedule_file, the file that holds the schedule");
    return {};
  }
  const std::optional<std::string> text = read_text(path, faults);
  // Against a wrong number of micro-batches every line of it would look wrong.
  const bool micros_known = deck.batch.global % (deck.batch.micro * deck.parallel.data) == 0;
  if (!text || !micros_known) return {};
  try {
    return parse_schedule(*text, shape, path);
  } catch (const Error& error) {
    if (error.code() != ExitCode::bad_input) throw;
    faults.add(error.what());
    return {};
  }
}

// The compute-only programs that the deck asks for; empty after a fault.
std::vector<Program> compute_programs(const Deck& deck, const ScheduleShape& shape,
                                      Faults& faults) {
  const std::string& name = deck.parallel.schedule;
  if (name == "file") return programs_of_file(deck, shape, faults);
  try {
    return build(name, shape);
  } catch (const Error& error) {
    if (error.code() != ExitCode::bad_input) throw;
    faults.add("parallel.schedule", '"' + name + '"', error.what());
    return {};
  }
}

// Each data rank owns a part of a chunk's state.
bool divides_state(const Deck& deck) { return deck.optimizer.zero == 1 && deck.parallel.data > 1; }

// Transfers and the rest around the compute programs; a user's own schedule is proven sound here.
std::vector<Program> lower_checked(const Deck& deck, const std::vector<Program>& compute,
                                   const ScheduleShape& shape, Faults& faults) {
  const LowerOptions options{.recompute = deck.memory.recompute == Recompute::layers,
                             .gather_shards = divides_state(deck)};
  try {
    std::vector<Program> programs = lower(compute, shape, options);
    if (deck.parallel.schedule == "file") validate(programs, shape);
    return programs;
  } catch (const Error& error) {
    if (deck.parallel.schedule != "file") throw;
    faults.add("parallel.schedule_file", '"' + deck.parallel.schedule_file + '"', error.what());
  }
  return {};
}

// Where a value's slots lie: what lives on nvme passes through host memory.
Home buffer_home(Value value, const Homes& homes) {
  switch (value) {
    case Value::host_weights:
    case Value::host_gradients: return Home::host;
    case Value::state: return homes.optimizer == Home::device ? Home::device : Home::host;
    case Value::stored:
      return homes.activations == ActivationStore::host ? Home::host : Home::device;
    default: return Home::device;
  }
}

void plan_phase_buffers(const Plan& plan, Phase& phase) {
  // One size a (value, chunk), asked for once a micro-batch.
  const int chunks = phase.shape.chunks.chunks();
  std::vector<std::vector<size_t>> sizes(kValueCount);
  for (int v = 0; v < kValueCount; ++v)
    for (int chunk = -1; chunk < chunks; ++chunk)
      sizes[static_cast<size_t>(v)].push_back(
          value_bytes(plan, phase, static_cast<Value>(v), chunk));
  const auto bytes = [&](Value value, int chunk) {
    return sizes[static_cast<size_t>(value)][static_cast<size_t>(chunk + 1)];
  };
  const Homes homes = plan.deck.memory.homes();
  const BufferRules rules{
      .training = phase.training,
      .home_of = [&](Value value) { return buffer_home(value, homes); },
      .stored_in =
          [&](Value value) {
            if (value == Value::reduced && plan.reduced_in_place) return Value::gradients;
            if (value == Value::host_weights && plan.weights_in_place) return Value::host_gradients;
            return value;
          },
  };
  for (int rank = 0; rank < plan.mesh.pp; ++rank)
    phase.buffers.push_back(
        plan_buffers(phase.programs[static_cast<size_t>(rank)], rank, phase.shape, rules, bytes));
}

// Evaluation: enough micro-batches a step to fill the pipeline, few enough that little is padded.
int evaluation_micros(int pipeline) { return pipeline == 1 ? 1 : 4 * pipeline; }

}  // namespace

int ranks_of(const Deck& deck) {
  return deck.parallel.pipeline * deck.parallel.data * deck.parallel.tensor;
}

Plan make_plan(const Deck& deck, int world_size) {
  const auto& p = deck.parallel;
  Faults faults(deck);
  check_numbers(deck, world_size, faults);

  Plan plan;
  plan.deck = deck;
  plan.mesh = {p.pipeline, p.data, p.tensor};
  const int64_t unit = deck.batch.micro * p.data;
  plan.train.shape = {cyclic_chunks(p.pipeline, p.chunks),
                      static_cast<int>(std::max<int64_t>(1, deck.batch.global / unit)),
                      deck.memory.homes(),
                      deck.optimizer.clip_norm_from == ClipNorm::previous_step};
  plan.train.samples_per_step = deck.batch.global;
  std::vector<Program> compute = compute_programs(deck, plan.train.shape, faults);
  faults.throw_if_any();
  plan.train.programs = lower_checked(deck, compute, plan.train.shape, faults);
  faults.throw_if_any();

  plan.architecture = make_architecture(deck);
  resolve(plan);
  plan.chunks = spread_layers(deck, plan.architecture, plan.train.shape.chunks);
  note_consequences(plan);

  plan.eval.training = false;
  plan.eval.shape = {plan.train.shape.chunks, evaluation_micros(p.pipeline), deck.memory.homes()};
  plan.eval.programs = lower(build_forward_only(plan.eval.shape), plan.eval.shape,
                             {.gather_shards = divides_state(deck), .training = false});
  plan.eval.samples_per_step = plan.deck.eval.batch * p.data * plan.eval.shape.micros;

  // What is cheap to compute is computed anew from what is stored: in 8 bits of its own it would
  // take more memory and time, and add noise.
  const bool in_8_bits = deck.memory.activations == ActivationStore::int8 &&
                         deck.memory.recompute != Recompute::layers;
  plan.train.sizes = {.micro = deck.batch.micro,
                      .tp = p.tensor,
                      .sequence = plan.sequence,
                      .working = deck.precision.type,
                      .recompute = in_8_bits ? Recompute::selective : deck.memory.recompute,
                      .rebuild_attention = in_8_bits};
  plan.eval.sizes = plan.train.sizes;
  plan.eval.sizes.micro = plan.deck.eval.batch;
  plan.eval.sizes.recompute = Recompute::none;
  plan.eval.sizes.rebuild_attention = false;
  if (plan.sequence && !rows_divide(plan.architecture, plan.deck.eval.batch, p.tensor)) {
    plan.eval.sizes.sequence = false;
    plan.notes.push_back(
        format("evaluation does not divide its rows: eval.batch = {} x {} tokens on "
               "{} tensor ranks",
               plan.deck.eval.batch, plan.architecture.tokens(), p.tensor));
  }

  plan_phase_buffers(plan, plan.train);
  plan_phase_buffers(plan, plan.eval);
  for (size_t rank = 0; rank < plan.train.buffers.size(); ++rank)
    share_slots(plan.train.buffers[rank], plan.eval.buffers[rank]);

  if (deck.data.format == DataFormat::synthetic)
    plan.steps_per_epoch = std::max<int64_t>(1, deck.data.synthetic_train / deck.batch.global);
  return plan;
}

}  // namespace voltapile
