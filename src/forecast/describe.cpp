#include <algorithm>

#include "voltapile/base/text_table.hpp"
#include "voltapile/base/units.hpp"
#include "voltapile/forecast/forecast.hpp"

#include "memory_table.hpp"

namespace voltapile {
namespace {

std::string percent(double fraction) { return format("{:.1f} %", 100 * fraction); }
std::string plural(int64_t count, std::string_view noun) {
  return format("{} {}{}", show_grouped(count), noun, count == 1 ? "" : "s");
}

// "0, 4, 8 .. 36" where all is named, or the ends of a longer list.
std::string shortened(const std::vector<std::string>& parts) {
  constexpr size_t kShown = 4;
  if (parts.size() <= kShown) return join(parts, ", ");
  return format("{}, {} .. {}", parts[0], parts[1], parts.back());
}

class Page {
 public:
  Page(const Plan& plan, const Hardware& hardware, int columns)
      : plan_(plan),
        hardware_(hardware),
        deck_(plan.deck),
        forecast_(forecast(plan)),
        columns_(static_cast<size_t>(std::max(columns, 80))) {}

  std::string text() {
    title();
    facts();
    schedule();
    layers();
    heading("Memory of each rank");
    text_ += memory_table(plan_, hardware_, columns_, kIndent);
    notes();
    return std::move(text_);
  }

 private:
  static constexpr std::string_view kIndent = "  ";
  static constexpr size_t kNameWidth = 13;

  void heading(std::string_view name) { text_ += format("\n{}\n", name); }
  void fact(std::string_view name, std::string_view value) {
    const std::string indent(kIndent.size() + kNameWidth, ' ');
    text_ += format("{}{:<{}}{}\n", kIndent, name, kNameWidth,
                    wrapped(value, columns_ - indent.size(), indent));
  }

  void title() {
    const std::string what =
        format("{}: {} parameters on {}", deck_.run.name, show_count(forecast_.parameters),
               plural(plan_.mesh.size(), "rank"));
    const size_t used = display_width(what) + display_width(deck_.path);
    text_ += what;
    if (!deck_.path.empty() && used + 2 <= columns_)
      text_ += std::string(columns_ - used, ' ') + deck_.path;
    text_ += '\n';
    std::string rule;
    for (size_t i = 0; i < columns_; ++i) rule += "─";
    text_ += rule + '\n';
  }

  void facts() {
    const auto& m = deck_.model;
    const Architecture& a = plan_.architecture;
    std::vector<std::string> extras;
    if (m.qk_norm) extras.push_back("QK-norm");
    if (m.layer_scale != 0) extras.push_back("LayerScale");
    if (m.drop_path != 0) extras.push_back(format("drop path {}", m.drop_path));
    extras.push_back(m.position == Position::learned ? "learned positions" : "2-D sine positions");
    extras.push_back(m.pool == Pool::mean ? "mean pooling" : "class token");
    fact("model", format("{} of width {}, {} of {}, mlp {}, {}", plural(m.depth, "block"),
                         show_grouped(m.dim), plural(m.heads, "head"), a.head_dim(),
                         show_grouped(m.mlp), join(extras, ", ")));
    fact("pictures", format("{} x {} x {} in patches of {} x {}: {}; {}", m.image[0], m.image[1],
                            m.channels, m.patch[0], m.patch[1], plural(a.tokens(), "token"),
                            m.classes == 1 ? "1 class" : show_grouped(m.classes) + " classes"));
    const int64_t frozen = a.frozen_count();
    if (frozen > 0)
      fact("training", format("{} parameters are trained, {} are frozen (optimizer.freeze)",
                              show_grouped(a.parameter_count() - frozen), show_grouped(frozen)));
    fact("mesh",
         format("{}: pipeline x data x tensor{}", plan_.mesh.text(),
                plan_.mesh.size() == 1 ? std::string()
                                       : format(", started by mpirun -n {}", plan_.mesh.size())));
    fact("step", format("{} = {} of {} on {}{}", plural(deck_.batch.global, "sample"),
                        micro_batches(plan_.train.shape.micros), deck_.batch.micro,
                        plural(plan_.mesh.dp, "data rank"), length_of_run()));
    fact("evaluation", format("{} of {} on {} at a time", micro_batches(plan_.eval.shape.micros),
                              deck_.eval.batch, plural(plan_.mesh.dp, "data rank")));
    fact("numbers", numbers());
    fact("work", work());
    fact("forecast", time());
    fact("activations", activations());
    fact("saving", saving());
  }

  // As the rank with the largest part of a checkpoint sees it, all ranks writing at once.
  std::string saving() const {
    double all = 0;
    SaveSize most;
    const int writers = deck_.optimizer.zero == 0 ? 1 : plan_.mesh.dp;
    for (int rank = 0; rank < plan_.mesh.pp; ++rank) {
      const SaveSize size = save_size(plan_, rank);
      if (size.bytes > most.bytes) most = size;
    }
    for (const Layer& layer : plan_.architecture.layers)
      for (const Parameter& parameter : layer.parameters)
        all += static_cast<double>(parameter.shape.elements() * sizeof(float)) * saved_parts(deck_);
    std::string text =
        format("{} a checkpoint, {} of it by one rank at most ({})", show_bytes(all),
               show_bytes(static_cast<double>(most.bytes)),
               plural(int64_t{plan_.mesh.pp} * plan_.mesh.tp * writers, "file") + " at once");
    const double rate = hardware_.disk_bytes_per_second;
    const auto seconds = [&](size_t bytes) {
      return show_seconds(static_cast<double>(bytes) / rate);
    };
    const std::string unknown =
        "no hardware file gives the rate of the disk (voltapile bench --disk FOLDER --write FILE "
        "makes one)";
    if (deck_.memory.optimizer == Home::device) {
      const double copied = static_cast<double>(most.bytes);
      text += format("; training stands still while it is copied to host memory ({})",
                     show_seconds(copied / hardware_.device_to_host_bytes_per_second));
      return text + (hardware_.disk_is_measured
                         ? format(", and it is written meanwhile in {}", seconds(most.bytes))
                         : format("; how long writing takes is unknown: {}", unknown));
    }
    text += format(
        "; a pool of {} (checkpoint.pool), so updates of the next step wait for {} to "
        "be written",
        show_bytes(static_cast<double>(most.pool)),
        most.held == 0 ? "nothing" : show_bytes(static_cast<double>(most.held)));
    if (!hardware_.disk_is_measured)
      return text + format("; how long that takes is unknown: {}", unknown);
    return text + format(": {} at most, of {} until the checkpoint is whole", seconds(most.held),
                         seconds(most.bytes));
  }

  std::string length_of_run() const {
    if (deck_.run.steps)
      return format("; {}, {}", plural(*deck_.run.steps, "step"),
                    plural(*deck_.run.steps * deck_.batch.global, "sample"));
    if (deck_.run.epochs) return format("; {} epochs", *deck_.run.epochs);
    return "";
  }

  std::string numbers() const {
    const DType working = deck_.precision.type;
    std::string scale;
    if (working == DType::f16)
      scale = deck_.precision.loss_scale ? format(", loss scale {}", *deck_.precision.loss_scale)
                                         : std::string(", dynamic loss scale");
    return format("{}{}; gradients leave as {}; sequence parallelism {}", name_of(working), scale,
                  name_of(plan_.gradient_store), plan_.sequence ? "on" : "off");
  }

  std::string time() const {
    const double seconds = step_seconds(plan_, hardware_);
    return format("{} a step at best, {:.3g} samples/s, as FLOPs and bytes bound it on {}",
                  show_seconds(seconds), static_cast<double>(deck_.batch.global) / seconds,
                  hardware_.device);
  }

  std::string work() const {
    const double samples = static_cast<double>(deck_.batch.global);
    std::string text = format("{} a step, {} a sample", show_flops(forecast_.model_flops_per_step),
                              show_flops(forecast_.model_flops_per_step / samples));
    if (forecast_.hardware_flops_per_step > forecast_.model_flops_per_step)
      text +=
          format("; {} a step with recomputation", show_flops(forecast_.hardware_flops_per_step));
    if (deck_.run.steps)
      text += format("; {} for the run", show_flops(static_cast<double>(*deck_.run.steps) *
                                                    forecast_.model_flops_per_step));
    return text;
  }

  std::string activations() const {
    const double kept = forecast_.activation_bytes,
                 all = forecast_.activation_bytes_without_recompute;
    if (plan_.train.sizes.rebuild_attention)
      return format(
          "{} on the heaviest rank, the MLP's in 8 bits; norms, GELU and attention are recomputed",
          show_bytes(kept));
    if (deck_.memory.recompute == Recompute::none)
      return format("{} on the heaviest rank, nothing recomputed", show_bytes(all));
    return format(
        "{} on the heaviest rank; {} without recomputation{}", show_bytes(kept), show_bytes(all),
        kept < all ? format(": {} saved", percent(1 - kept / all)) : ", which saves none");
  }

  void schedule() {
    const int per_rank = plan_.train.shape.chunks.chunks() / plan_.mesh.pp;
    const auto& p = deck_.parallel;
    heading(format("Schedule: {}, {} on each of {}, {}",
                   p.schedule == "file" ? p.schedule_file : p.schedule, plural(per_rank, "chunk"),
                   plural(plan_.mesh.pp, "pipeline rank"),
                   micro_batches(plan_.train.shape.micros)));
    const Timeline timeline =
        simulate(plan_.train.programs, plan_.train.shape, costs_by_flops(plan_));
    std::string picture =
        draw(timeline, plan_.mesh.pp, static_cast<int>(columns_ - kIndent.size()));
    for (size_t at = 0; at < picture.size();) {
      const size_t end = picture.find('\n', at);
      text_ += std::string(kIndent) + picture.substr(at, end - at) + '\n';
      if (end == std::string::npos) break;
      at = end + 1;
    }
    std::string text = format("{} simulated, costs by FLOPs", percent(forecast_.bubble));
    if (forecast_.bubble_formula >= 0)
      text += format("; {} by the formula for equal chunks", percent(forecast_.bubble_formula));
    fact("bubble", text);
  }

  static std::string micro_batches(int64_t count) {
    return format("{} micro-batch{}", show_grouped(count), count == 1 ? "" : "es");
  }

  std::string layers_of_chunk(const Chunk& chunk) const {
    std::vector<int> blocks;
    bool embedding = false, head = false;
    for (int l = chunk.first_layer; l < chunk.end_layer; ++l) {
      const Layer& layer = plan_.architecture.layers[static_cast<size_t>(l)];
      if (layer.kind == LayerKind::block) blocks.push_back(layer.block);
      embedding |= layer.kind == LayerKind::embedding;
      head |= layer.kind == LayerKind::head;
    }
    const std::string range = blocks.size() == 1 ? format("{}", blocks.front())
                                                 : format("{}-{}", blocks.front(), blocks.back());
    return (embedding ? "embedding + " : "") + range + (head ? " + head" : "");
  }

  void layers() {
    heading("Chunks and shards");
    TextTable table(
        {Align::left, Align::left, Align::left, Align::right, Align::right, Align::right});
    const bool divided = deck_.optimizer.zero == 1 && plan_.mesh.dp > 1;
    const bool freezes = plan_.architecture.frozen_count() > 0;
    std::vector<std::string> head{"rank", "chunks", "blocks", "parameters"};
    if (freezes) head.push_back("frozen");
    if (divided) head.push_back(format("1/{} of state", plan_.mesh.dp));
    table.add(std::move(head));
    constexpr int kMostRows = 16;
    const int ranks = plan_.mesh.pp, rows = std::min(ranks, kMostRows);
    for (int row = 0; row < rows; ++row) {
      // A long pipeline shows its first ranks and its last.
      const int rank = ranks > kMostRows && row == rows - 1 ? ranks - 1 : row;
      if (rank != row) table.add({"..."});
      std::vector<std::string> numbers, blocks;
      int64_t parameters = 0, frozen = 0, shard = 0;
      for (size_t c = 0; c < plan_.chunks.size(); ++c) {
        const Chunk& chunk = plan_.chunks[c];
        if (chunk.rank != rank) continue;
        numbers.push_back(std::to_string(c));
        blocks.push_back(layers_of_chunk(chunk));
        for (const FlatEntry& entry : chunk.parameters.entries) {
          parameters += entry.elements;
          const Layer& layer = plan_.architecture.layers[static_cast<size_t>(entry.layer)];
          if (layer.parameters[static_cast<size_t>(entry.parameter)].frozen)
            frozen += entry.elements;
        }
        shard += plan_.shard_elements(static_cast<int>(c));
      }
      std::vector<std::string> cells{format("pp{}", rank), shortened(numbers), shortened(blocks),
                                     show_grouped(parameters)};
      if (freezes) cells.push_back(show_grouped(frozen));
      if (divided) cells.push_back(show_grouped(shard));
      table.add(std::move(cells));
    }
    text_ += table.text(kIndent);
  }

  void notes() {
    if (plan_.notes.empty()) return;
    heading("Notes");
    for (const std::string& note : plan_.notes)
      text_ += format("{}- {}\n", kIndent, wrapped(note, columns_ - 4, "    "));
  }

  const Plan& plan_;
  const Hardware& hardware_;
  const Deck& deck_;
  Forecast forecast_;
  size_t columns_;
  std::string text_;
};

}  // namespace

std::string describe(const Plan& plan, const Hardware& hardware, int columns) {
  return Page(plan, hardware, columns).text();
}

}  // namespace voltapile
