#include "voltapile/train/metrics.hpp"

#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>
#include <optional>
#include <span>
#include <variant>
#include <vector>

#include <fcntl.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include "voltapile/base/error.hpp"
#include "voltapile/base/log.hpp"
#include "voltapile/checkpoint/durable.hpp"
#include "voltapile/h5/h5.hpp"

namespace voltapile {
namespace {

using Json = nlohmann::ordered_json;
using Record = std::variant<TrainRecord, EvalRecord, RewindRecord>;

// Not-a-number and infinity have no JSON: they are written as null and read as NaN.
double number(const Json& json, const char* key) {
  const Json& value = json.at(key);
  return value.is_null() ? std::numeric_limits<double>::quiet_NaN() : value.get<double>();
}

std::string line_of(const TrainRecord& r) {
  return Json{{"kind", "train"},
              {"step", r.step},
              {"loss", r.loss},
              {"learning_rate", r.learning_rate},
              {"grad_norm", r.grad_norm},
              {"loss_scale", r.loss_scale},
              {"samples_per_second", r.samples_per_second},
              {"seconds", r.seconds},
              {"skipped", r.skipped}}
             .dump() +
         "\n";
}
std::string line_of(const EvalRecord& r) {
  return Json{{"kind", "eval"}, {"step", r.step}, {"loss", r.loss},
              {"top1", r.top1}, {"top5", r.top5}, {"samples", r.samples}}
             .dump() +
         "\n";
}
std::string line_of(const RewindRecord& r) {
  return Json{{"kind", "rewind"},
              {"step", r.step},
              {"from_step", r.from_step},
              {"rewinds", r.rewinds},
              {"cause", r.cause}}
             .dump() +
         "\n";
}

std::optional<Record> parse_line(const std::string& line) {
  try {
    const Json json = Json::parse(line);
    const std::string kind = json.at("kind");
    if (kind == "train") {
      return TrainRecord{
          json.at("step"),           number(json, "loss"),       number(json, "learning_rate"),
          number(json, "grad_norm"), number(json, "loss_scale"), number(json, "samples_per_second"),
          number(json, "seconds"),   json.at("skipped")};
    }
    if (kind == "eval") {
      return EvalRecord{json.at("step"), number(json, "loss"), number(json, "top1"),
                        number(json, "top5"), json.at("samples")};
    }
    if (kind == "rewind")
      return RewindRecord{json.at("step"), json.at("from_step"), json.at("rewinds"),
                          json.at("cause")};
  } catch (const Json::exception&) {}
  return std::nullopt;
}

int64_t step_of(const Record& record) {
  return std::visit([](const auto& r) { return r.step; }, record);
}

struct Column {
  const char* name;
  const char* units;
  double (*get)(const TrainRecord&);
};
constexpr Column kTrainColumns[] = {
    {"loss", "1", [](const TrainRecord& r) { return r.loss; }},
    {"learning_rate", "1", [](const TrainRecord& r) { return r.learning_rate; }},
    {"grad_norm", "1", [](const TrainRecord& r) { return r.grad_norm; }},
    {"loss_scale", "1", [](const TrainRecord& r) { return r.loss_scale; }},
    {"samples_per_second", "samples/s", [](const TrainRecord& r) { return r.samples_per_second; }},
    {"seconds", "s", [](const TrainRecord& r) { return r.seconds; }},
};
struct EvalColumn {
  const char* name;
  const char* units;
  double (*get)(const EvalRecord&);
};
constexpr EvalColumn kEvalColumns[] = {
    {"loss", "1", [](const EvalRecord& r) { return r.loss; }},
    {"top1", "fraction", [](const EvalRecord& r) { return r.top1; }},
    {"top5", "fraction", [](const EvalRecord& r) { return r.top5; }},
};

template <class T, class R, class Get>
void write_column(h5::Group& group, const char* name, const char* units,
                  const std::vector<R>& records, const Get& get) {
  std::vector<T> values;
  values.reserve(records.size());
  for (const R& record : records) values.push_back(static_cast<T>(get(record)));
  h5::Dataset dataset =
      group.create_dataset(name, dtype_of<T>::value, Shape{static_cast<int64_t>(values.size())});
  if (!values.empty()) dataset.write(values.data(), dtype_of<T>::value);
  dataset.set_attribute("units", std::string_view(units));
}

[[noreturn]] void throw_errno(const std::filesystem::path& path, const char* what) {
  throw Error(ExitCode::failure, format("{}: {}: {}", path.string(), what, std::strerror(errno)));
}

}  // namespace

MetricLines read_metrics(const std::filesystem::path& run_dir) {
  std::ifstream in(run_dir / "metrics.jsonl", std::ios::binary);
  MetricLines lines;
  for (std::string line; std::getline(in, line) && !in.eof();) {
    const auto record = parse_line(line);
    if (!record) continue;
    if (const auto* train = std::get_if<TrainRecord>(&*record)) lines.train.push_back(*train);
    if (const auto* eval = std::get_if<EvalRecord>(&*record)) lines.eval.push_back(*eval);
    if (const auto* back = std::get_if<RewindRecord>(&*record)) lines.rewinds.push_back(*back);
  }
  return lines;
}

int64_t last_recorded_step(const std::filesystem::path& run_dir) {
  std::ifstream in(run_dir / "metrics.jsonl", std::ios::binary);
  int64_t last = 0;
  for (std::string line; std::getline(in, line);) {
    const auto record = parse_line(line);
    if (record && std::holds_alternative<TrainRecord>(*record))
      last = std::max(last, std::get<TrainRecord>(*record).step);
  }
  return last;
}

struct Metrics::Impl {
  std::filesystem::path lines_path, h5_path;
  LineFault on_fault;
  int fd = -1;
  std::string waiting;  // whole lines
  bool warned = false;  // since a line was last written
  std::vector<TrainRecord> train;
  std::vector<EvalRecord> eval;
  std::chrono::steady_clock::time_point published;

  Impl(const std::filesystem::path& run_dir, int64_t resume_step, LineFault what)
      : lines_path(run_dir / "metrics.jsonl"), h5_path(run_dir / "metrics.h5"), on_fault(what) {
    // The datasets first: a kill in between must not leave them with steps that the lines lack.
    const Cut cut = read_lines(resume_step);
    publish_datasets();
    apply(cut);
    fd = ::open(lines_path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (fd < 0) throw_errno(lines_path, "cannot open this file for appending");
  }
  ~Impl() { ::close(fd); }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  void keep(const Record& record) {
    if (const auto* t = std::get_if<TrainRecord>(&record)) train.push_back(*t);
    if (const auto* e = std::get_if<EvalRecord>(&record)) eval.push_back(*e);
  }

  // What must go from the lines: their end from `bytes` on, or, when something in the middle goes,
  // everything but `kept`.
  struct Cut {
    enum class Kind { nothing, end, middle } kind = Kind::nothing;
    size_t bytes = 0;
    std::string kept;
  };

  Cut read_lines(int64_t resume_step) {
    Cut cut;
    if (!std::filesystem::exists(lines_path)) return cut;
    std::ifstream in(lines_path, std::ios::binary);
    if (!in) throw_errno(lines_path, "cannot open this file");
    size_t offset = 0;
    int64_t unreadable = 0;
    for (std::string line; std::getline(in, line);) {
      const bool torn = in.eof();  // no newline: a write that a kill cut short
      const auto record = torn ? std::nullopt : parse_line(line);
      if (!record && !torn) ++unreadable;
      if (record && step_of(*record) <= resume_step) {
        if (cut.kind != Cut::Kind::nothing) cut.kind = Cut::Kind::middle;
        cut.kept += line + "\n";
        keep(*record);
      } else if (cut.kind == Cut::Kind::nothing) {
        cut.kind = Cut::Kind::end;
        cut.bytes = offset;
      }
      offset += line.size() + 1;
    }
    if (in.bad()) throw_errno(lines_path, "cannot read");
    if (unreadable > 0) {
      log::warn(format("{}: {} unreadable lines are removed", lines_path.string(), unreadable));
    }
    return cut;
  }

  void apply(const Cut& cut) {
    if (cut.kind == Cut::Kind::middle) {
      publish_file(lines_path, std::as_bytes(std::span(cut.kept)));
    }
    // Keeps the file that a `tail -f` has open.
    if (cut.kind == Cut::Kind::end &&
        ::truncate(lines_path.c_str(), static_cast<off_t>(cut.bytes)) != 0) {
      throw_errno(lines_path, "cannot cut this file");
    }
  }

  // One write call, so that no reader and no kill ever sees half a line and the next one.
  void append_waiting() {
    if (waiting.empty()) return;
    ssize_t wrote = 0;
    do { wrote = ::write(fd, waiting.data(), waiting.size()); } while (wrote < 0 && errno == EINTR);
    if (wrote < 0) throw_errno(lines_path, "cannot write");
    if (static_cast<size_t>(wrote) != waiting.size()) {
      const off_t end = ::lseek(fd, 0, SEEK_END);
      if (end < 0 || ::ftruncate(fd, end - static_cast<off_t>(wrote)) != 0)
        throw_errno(lines_path, "cannot take back half a line");
      throw Error(ExitCode::failure, lines_path.string() +
                                         ": cannot write a whole line; is the "
                                         "disk full?");
    }
    waiting.clear();
    warned = false;
  }

  void publish() {
    append_waiting();
    if (::fsync(fd) != 0) throw_errno(lines_path, "cannot sync this file to the disk");
    publish_datasets();
  }

  void publish_datasets() {
    h5::File file = h5::File::create_in_memory(h5_path);
    {
      h5::Group group = file.create_group("train");
      write_column<int64_t>(group, "step", "steps", train,
                            [](const TrainRecord& r) { return r.step; });
      for (const Column& column : kTrainColumns) {
        write_column<double>(group, column.name, column.units, train, column.get);
      }
      write_column<uint8_t>(group, "skipped", "0 or 1", train,
                            [](const TrainRecord& r) { return r.skipped; });
    }
    {
      h5::Group group = file.create_group("eval");
      write_column<int64_t>(group, "step", "steps", eval,
                            [](const EvalRecord& r) { return r.step; });
      for (const EvalColumn& column : kEvalColumns) {
        write_column<double>(group, column.name, column.units, eval, column.get);
      }
      write_column<int64_t>(group, "samples", "samples", eval,
                            [](const EvalRecord& r) { return r.samples; });
    }
    publish_file(h5_path, file.close_image());
    published = std::chrono::steady_clock::now();
  }

  template <class R>
  void add(const R& record) {
    waiting += line_of(record);
    keep(record);
    try {
      append_waiting();
      if (std::chrono::steady_clock::now() - published >= kPublishInterval) publish();
    } catch (const Error& error) {
      if (on_fault == LineFault::ends_run) throw;
      if (!warned) log::warn(format("{}; lines wait in memory", error.what()));
      warned = true;
    }
  }
};

Metrics::Metrics(const std::filesystem::path& run_dir, int64_t resume_step, LineFault on_fault)
    : impl_(std::make_unique<Impl>(run_dir, resume_step, on_fault)) {}

Metrics::~Metrics() {
  try {
    impl_->publish();
  } catch (const std::exception& error) {
    log::error(format("the metrics could not be published: {}", error.what()));
  }
}

void Metrics::add(const TrainRecord& record) { impl_->add(record); }
void Metrics::add(const EvalRecord& record) { impl_->add(record); }
void Metrics::add(const RewindRecord& record) { impl_->add(record); }
void Metrics::publish() { impl_->publish(); }

}  // namespace voltapile
