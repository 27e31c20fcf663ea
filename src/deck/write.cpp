#include "voltapile/base/format.hpp"
#include "voltapile/deck/parse.hpp"

#include "schema.hpp"

namespace voltapile {

namespace {

std::string with_backticks(const Fallback& fallback) {
  return fallback.kind == Fallback::Kind::literal ? "`" + fallback.text + "`" : fallback.text;
}

std::string reference_row(const Row& row) {
  std::string help = row.notes.help;
  if (!row.notes.unit.empty()) help += format(" Unit: {}.", row.notes.unit);
  return format("| `{}` | {} | {} | {} | {} |\n", row.key, row.allowed,
                with_backticks(row.notes.fallback),
                row.notes.on_resume == OnResume::may_change ? "yes" : "no", help);
}

}  // namespace

std::string write_deck(const Deck& deck) {
  std::string text = "# The resolved deck: every key, with defaults filled in.\n";
  std::string section;
  for (const Row& row : schema().rows) {
    if (row.section != section) text += format("\n[{}]\n", section = row.section);
    const auto value = row.write(deck);
    text += value ? format("{} = {}\n", row.key, *value) : format("# {} is not set\n", row.key);
  }
  return text;
}

std::vector<DeckDifference> compare_decks(const Deck& before, const Deck& after) {
  std::vector<DeckDifference> differences;
  for (const Row& row : schema().rows) {
    const auto old_value = row.write(before), new_value = row.write(after);
    if (old_value != new_value)
      differences.push_back({row.name(), old_value.value_or("not set"),
                             new_value.value_or("not set"),
                             row.notes.on_resume == OnResume::may_change});
  }
  return differences;
}

std::string deck_reference() {
  std::string text =
      "# Input decks\n\n"
      "A deck is a TOML file that says everything about a run. This page is generated from the\n"
      "table that the program itself reads decks by, so it is complete and never out of date.\n\n"
      "* Any key can be given on the command line: `--set section.key=value`, quotes optional.\n"
      "* An unknown section, key or word is an error, and all errors of a deck are shown at once.\n"
      "* Sizes take `\"32 GB\"` (1e9 bytes) and `\"32 GiB\"` (2^30); times take `\"90s\"`, "
      "`\"30m\"`, `\"71h30m\"`.\n"
      "* Decks are plain ASCII. File names are relative to the deck's folder.\n"
      "* The last column but one says whether the key may differ when a run continues.\n\n"
      "A short deck that works:\n\n"
      "```toml\n"
      "run.steps = 100\n"
      "model = { image = 32, patch = 4, dim = 64, depth = 4, heads = 4, classes = 10 }\n"
      "batch.global = 32\n"
      "data.format = \"synthetic\"\n"
      "```\n\n"
      "The decks of this folder, each with its own heading:\n\n"
      "| deck | ranks | what |\n"
      "| --- | --- | --- |\n"
      "| `quickstart.toml` | 4 | a small ViT on Fashion-MNIST; shows every key |\n"
      "| `vit_tiny_synthetic.toml` | 1 | ViT-Ti/16 on a CPU |\n"
      "| `vit_l16_synthetic_1gpu.toml` | 1 | ViT-L/16 in f16 on one GPU |\n"
      "| `vit_large_synthetic.toml` | 2 | ViT-L/16, interleaved pipeline |\n"
      "| `vit_huge_synthetic.toml` | 4 | ViT-H/14, pipeline and tensor parallelism |\n"
      "| `vit32b_synthetic_4xv100.toml` | 4 | 32 billion parameters on 4 x 32 GB |\n"
      "| `vit175b_synthetic_512gpu.toml` | 512 | 175 billion parameters |\n"
      "\n"
      "`hardware/` holds what `voltapile bench --write` measured on some machines.\n";
  for (const SectionInfo& section : schema().sections) {
    text +=
        format("\n## [{}]\n\n{}\n\n| key | value | default | may change on resume | meaning |\n",
               section.name, section.help);
    text += "| --- | --- | --- | --- | --- |\n";
    for (const Row& row : schema().rows)
      if (row.section == section.name) text += reference_row(row);
  }
  return text;
}

}  // namespace voltapile
