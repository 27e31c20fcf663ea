#include "index.hpp"

#include <algorithm>
#include <cstring>
#include <fstream>
#include <map>

#include <sys/resource.h>

#include "voltapile/checkpoint/durable.hpp"

#include "mapping.hpp"

namespace voltapile {
namespace {

constexpr size_t kTextBytes = 512;

struct ShardRow {
  char file[32];
  int64_t bytes;
  char digest[40];
};
const std::vector<h5::Field>& shard_fields() {
  static const std::vector<h5::Field> fields = {
      {"file", DType::u8, sizeof(ShardRow::file), offsetof(ShardRow, file)},
      {"bytes", DType::i64, 0, offsetof(ShardRow, bytes)},
      {"digest", DType::u8, sizeof(ShardRow::digest), offsetof(ShardRow, digest)}};
  return fields;
}

struct RangeRow {
  int64_t shard, begin, end;
  char dataset[128];
  char digest[40];
};
const std::vector<h5::Field>& range_fields() {
  static const std::vector<h5::Field> fields = {
      {"shard", DType::i64, 0, offsetof(RangeRow, shard)},
      {"begin", DType::i64, 0, offsetof(RangeRow, begin)},
      {"end", DType::i64, 0, offsetof(RangeRow, end)},
      {"dataset", DType::u8, sizeof(RangeRow::dataset), offsetof(RangeRow, dataset)},
      {"digest", DType::u8, sizeof(RangeRow::digest), offsetof(RangeRow, digest)}};
  return fields;
}

template <size_t kBytes>
void put_text(char (&place)[kBytes], const std::string& text) {
  VP_CHECK(text.size() <= kBytes, "{} is longer than {} bytes", text, kBytes);
  std::memcpy(place, text.data(), text.size());
}
template <size_t kBytes>
std::string get_text(const char (&place)[kBytes]) {
  return std::string(place, strnlen(place, kBytes));
}

// The whole text block: any flipped bit in it shows.
std::string text_block(int64_t bytes, const std::string& digest) {
  std::string text = format(
      "voltapile checkpoint index. An HDF5 file follows these {} bytes of text.\n"
      "bytes {}\nxxh3-128 of the rest {}\n",
      kTextBytes, bytes, digest);
  text.resize(kTextBytes, '\0');
  return text;
}

struct Source {
  const ShardLayout* shard;
  const StoredPiece* piece;
};

bool overlap(const h5::Box& a, const h5::Box& b) {
  for (int dim = 0; dim < a.start.dims(); ++dim) {
    if (a.start[dim] >= b.start[dim] + b.count[dim] || b.start[dim] >= a.start[dim] + a.count[dim])
      return false;
  }
  return true;
}

void check_covered_once(const Parameter& parameter, std::vector<h5::Box> boxes) {
  int64_t covered = 0;
  for (const h5::Box& box : boxes) covered += box.count.elements();
  bool twice = false;
  std::sort(boxes.begin(), boxes.end(),
            [](const h5::Box& a, const h5::Box& b) { return a.start[0] < b.start[0]; });
  for (size_t i = 0; i < boxes.size(); ++i) {
    const int64_t end = boxes[i].start[0] + boxes[i].count[0];
    for (size_t j = i + 1; j < boxes.size() && boxes[j].start[0] < end; ++j) {
      twice = twice || overlap(boxes[i], boxes[j]);
    }
  }
  VP_CHECK(!twice && covered == parameter.shape.elements(),
           "{} {}: the ranks' pieces hold {} of its {} elements{}", parameter.name,
           parameter.shape.text(), covered, parameter.shape.elements(),
           twice ? ", some of them twice" : "");
}

void write_tensor(const Parameter& parameter, const std::vector<Source>& sources, h5::Group& model,
                  std::map<std::string, h5::Group>& optimizer) {
  std::vector<h5::VirtualPart> parts;
  std::vector<h5::Box> boxes;
  for (const auto& [shard, piece] : sources) {
    for (const Mapping& mapping :
         map_piece(parameter, shard->owner.tp, shard->owner.tp_rank, piece->begin, piece->end)) {
      parts.push_back({shard->file, "/master/" + parameter.name, piece->end - piece->begin,
                       mapping.offset, mapping.whole});
      boxes.push_back(mapping.whole);
    }
  }
  check_covered_once(parameter, std::move(boxes));
  model.create_virtual(parameter.name, parameter.shape, parts);
  for (auto& [state, group] : optimizer) {
    for (h5::VirtualPart& part : parts) part.dataset = "/" + state + "/" + parameter.name;
    group.create_virtual(parameter.name, parameter.shape, parts);
  }
}

void write_state(h5::File& file, const RunState& state) {
  file.set_attribute("format_version", kFormatVersion);
  file.set_attribute("step", state.step);
  file.set_attribute("samples", state.samples);
  file.set_attribute("seed", state.seed);
  file.set_attribute("loss_scale", state.loss_scale);
  file.set_attribute("good_steps", state.good_steps);
  file.set_attribute("adam_step", state.adam_step);
  file.set_attribute("skipped_steps", state.skipped_steps);
  if (state.multiplier) file.set_attribute("gradient_multiplier", *state.multiplier);
  file.set_attribute("rewinds", state.rewinds);
  file.set_attribute("deck", std::string_view(state.deck));
}

RunState read_state(const h5::File& file) {
  RunState state;
  state.step = file.int_attribute("step");
  state.samples = file.int_attribute("samples");
  state.seed = file.uint_attribute("seed");
  state.loss_scale = file.double_attribute("loss_scale");
  state.good_steps = file.int_attribute("good_steps");
  state.adam_step = file.int_attribute("adam_step");
  state.skipped_steps = file.int_attribute("skipped_steps");
  if (file.has_attribute("gradient_multiplier"))
    state.multiplier = file.double_attribute("gradient_multiplier");
  // Earlier versions never went back.
  if (file.has_attribute("rewinds")) state.rewinds = file.int_attribute("rewinds");
  state.deck = file.text_attribute("deck");
  return state;
}

void write_shards(h5::File& file, const std::vector<std::string>& names,
                  const std::vector<ShardReport>& reports) {
  std::vector<ShardRow> rows(reports.size());
  for (size_t i = 0; i < rows.size(); ++i) {
    rows[i] = {};
    put_text(rows[i].file, names[i]);
    put_text(rows[i].digest, reports[i].digest);
    rows[i].bytes = reports[i].bytes;
  }
  file.write_table("shards", shard_fields(), sizeof(ShardRow), rows.data(),
                   static_cast<int64_t>(rows.size()));
}

std::vector<ShardEntry> read_shards(const h5::File& file) {
  std::vector<ShardRow> rows(static_cast<size_t>(file.table_rows("shards")));
  file.read_table("shards", shard_fields(), sizeof(ShardRow), rows.data());
  std::vector<ShardEntry> shards;
  for (const ShardRow& row : rows) {
    shards.push_back({get_text(row.file), row.bytes, get_text(row.digest)});
  }
  return shards;
}

void write_ranges(h5::File& file, const std::vector<ShardReport>& reports) {
  std::vector<RangeRow> rows;
  for (size_t shard = 0; shard < reports.size(); ++shard) {
    for (const StoredRange& range : reports[shard].ranges) {
      RangeRow row{static_cast<int64_t>(shard), range.begin, range.end, {}, {}};
      put_text(row.dataset, range.dataset);
      put_text(row.digest, range.digest);
      rows.push_back(row);
    }
  }
  file.write_table("ranges", range_fields(), sizeof(RangeRow), rows.data(),
                   static_cast<int64_t>(rows.size()));
}

void check_text(const std::filesystem::path& path) {
  const Digest digest = digest_file(path, kTextBytes);
  std::string text(kTextBytes, '\0');
  std::ifstream(path, std::ios::binary).read(text.data(), kTextBytes);
  if (text != text_block(digest.bytes, digest.hex)) {
    throw Error(ExitCode::bad_data,
                format("{}: damaged: its {} bytes have another digest than their first line says; "
                       "use another checkpoint",
                       path.string(), digest.bytes));
  }
}

}  // namespace

IndexDraft::IndexDraft(const std::filesystem::path& folder, const RunState& state,
                       const std::vector<Parameter>& model, const std::vector<ShardLayout>& layouts)
    : path_(folder / kIndexName), file_(h5::File::create_in_memory(path_, kTextBytes)) {
  std::map<std::string, std::vector<Source>> sources;
  for (const ShardLayout& shard : layouts) {
    files_.push_back(shard.file);
    for (const StoredPiece& piece : shard.pieces) sources[piece.name].push_back({&shard, &piece});
  }
  write_state(file_, state);
  h5::Group tensors = file_.create_group("model");
  h5::Group optimizer = file_.create_group("optimizer");
  h5::Group master = optimizer.create_group("master");
  std::map<std::string, h5::Group> states;
  for (const char* state : {"m", "v"}) states.emplace(state, optimizer.create_group(state));
  if (std::any_of(layouts.begin(), layouts.end(), [](const auto& shard) { return shard.ema; }))
    states.emplace("ema", optimizer.create_group("ema"));
  for (const Parameter& parameter : model) {
    write_tensor(parameter, sources[parameter.name], tensors, states);
    master.link(parameter.name, "/model/" + parameter.name);
  }
  VP_CHECK(sources.size() == model.size(), "pieces of {} tensors for a model of {}", sources.size(),
           model.size());
}

void IndexDraft::finish(const std::vector<ShardReport>& reports) {
  VP_CHECK(reports.size() == files_.size(), "{} reports of {} shards", reports.size(),
           files_.size());
  write_shards(file_, files_, reports);
  write_ranges(file_, reports);
  std::vector<std::byte> image = file_.close_image();
  const std::string text = text_block(static_cast<int64_t>(image.size()),
                                      digest_of(std::span(image).subspan(kTextBytes)));
  std::memcpy(image.data(), text.data(), kTextBytes);
  write_synced(path_, image);
}

Index open_index(const std::filesystem::path& checkpoint) {
  const auto code = ExitCode::bad_data;
  const std::filesystem::path path = checkpoint / kIndexName;
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(path, ignored)) {
    throw Error(code,
                format("{}: this is no checkpoint: it has no {}", checkpoint.string(), kIndexName));
  }
  check_text(path);
  h5::File file = h5::File::open(path);
  const int64_t version = file.int_attribute("format_version");
  if (version < kOldestFormatVersion || version > kFormatVersion) {
    throw Error(code, format("{}: format version {}; this program reads {} to {}", path.string(),
                             version, kOldestFormatVersion, kFormatVersion));
  }
  RunState state = read_state(file);
  std::vector<ShardEntry> shards = read_shards(file);
  return {std::move(file), path, std::move(state), std::move(shards)};
}

std::vector<StoredRange> read_ranges(const Index& index, size_t shard) {
  std::vector<StoredRange> ranges;
  if (!index.file.exists("ranges")) return ranges;
  std::vector<RangeRow> rows(static_cast<size_t>(index.file.table_rows("ranges")));
  index.file.read_table("ranges", range_fields(), sizeof(RangeRow), rows.data());
  for (const RangeRow& row : rows) {
    if (row.shard != static_cast<int64_t>(shard)) continue;
    ranges.push_back({get_text(row.dataset), row.begin, row.end, get_text(row.digest)});
  }
  return ranges;
}

h5::Group open_state(const Index& index, const std::string& state) {
  return state == "master" ? index.file.open_group("model")
                           : index.file.open_group("optimizer").open_group(state);
}

bool has_averages(const Index& index) { return index.file.open_group("optimizer").exists("ema"); }

std::string size_fault(const std::filesystem::path& checkpoint, const ShardEntry& shard) {
  const std::filesystem::path path = checkpoint / shard.file;
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) return path.string() + ": missing";
  const auto bytes = static_cast<int64_t>(std::filesystem::file_size(path, error));
  if (error) return format("{}: {}", path.string(), error.message());
  if (bytes != shard.bytes) {
    return format("{}: {} bytes instead of {}", path.string(), bytes, shard.bytes);
  }
  return "";
}

std::string allow_open_files(size_t shards) {
  constexpr rlim_t kOthers = 64;
  const rlim_t wanted = static_cast<rlim_t>(shards) + kOthers;
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= wanted) return "";
  limit.rlim_cur = std::min(wanted, limit.rlim_max);
  ::setrlimit(RLIMIT_NOFILE, &limit);
  if (limit.rlim_cur >= wanted) return "";
  return format("; the limit of {} open files may be too low for {} shards (ulimit -n {})",
                limit.rlim_cur, shards, wanted);
}

}  // namespace voltapile
