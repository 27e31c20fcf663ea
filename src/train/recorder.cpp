#include "recorder.hpp"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <fstream>
#include <optional>

#include "voltapile/base/clock.hpp"
#include "voltapile/base/host.hpp"
#include "voltapile/base/log.hpp"
#include "voltapile/checkpoint/durable.hpp"
#include "voltapile/deck/parse.hpp"
#include "voltapile/train/trainer.hpp"

namespace voltapile {
namespace {

namespace fs = std::filesystem;

constexpr int kMeetings = 16;
constexpr double kPublishSeconds = 1;
// Publishing rewrites the file, so it may take this share of the time at most.
constexpr double kPublishShare = 0.02;
// Rows that a rank keeps before it asks to publish: 64 MB.
constexpr size_t kMostRows = 1'000'000;

int64_t to_ns(double seconds) { return static_cast<int64_t>(seconds * 1e9); }

// The same text on all processes that share a clock; the kernel's clock starts with the machine.
std::string clock_name() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string name;
  std::getline(file, name);
  return name.empty() ? format("unknown of {}", host_name()) : name;
}

int64_t unix_ns_less_clock() {
  using namespace std::chrono;
  const auto unix_time = system_clock::now().time_since_epoch();
  return duration_cast<nanoseconds>(unix_time).count() - to_ns(now_seconds());
}

}  // namespace

std::vector<Meeting> meet(Communicator& control, const std::function<double()>& clock, int rounds) {
  std::vector<double> entered, left;
  for (int round = 0; round < rounds; ++round) {
    entered.push_back(clock());
    control.barrier();
    left.push_back(clock());
  }
  std::string text;
  for (int round = 0; round < rounds; ++round)
    text += format("{:.17g} {:.17g} ", entered[static_cast<size_t>(round)],
                   left[static_cast<size_t>(round)]);
  const std::string reference = control.gather_text(control.rank() == 0 ? text : "").front();
  std::vector<Meeting> meetings;
  const char* at = reference.c_str();
  for (size_t round = 0; round < static_cast<size_t>(rounds); ++round) {
    char* next = nullptr;
    Meeting meeting{.entered = entered[round], .left = left[round]};
    meeting.reference_entered = std::strtod(at, &next);
    meeting.reference_left = std::strtod(next, &next);
    at = next;
    meetings.push_back(meeting);
  }
  return meetings;
}

bool Recorder::is_wanted(const RankContext& context) {
  const Deck::Trace& trace = context.plan().deck.trace;
  return !trace.steps.empty() || (trace.gpu_seconds > 0 && !context.device().pci_address().empty());
}

Recorder::Recorder(const RankContext& context, Communicator& control, fs::path run_dir,
                   int64_t done, int64_t epoch_samples)
    : context_(context),
      control_(control),
      path_(std::move(run_dir) / "trace.h5"),
      epoch_samples_(epoch_samples),
      sampler_(sample_gpu(context.device().pci_address(), context.plan().deck.trace.gpu_seconds,
                          control)) {
  const std::vector<std::string> samplers = control.gather_text(sampler_ ? "1" : "0");
  gpus_are_sampled_ = std::find(samplers.begin(), samplers.end(), "1") != samplers.end();
  if (sampler_) sampler_->set_step(done);
  const std::string& window = context.plan().deck.trace.steps;
  if (const size_t colon = window.find(':'); colon != std::string::npos) {
    std::from_chars(window.data(), window.data() + colon, first_);
    std::from_chars(window.data() + colon + 1, window.data() + window.size(), end_);
  }
  first_ = std::max(first_, done + 1);

  const Plan& plan = context.plan();
  const int pp = context.coord().pp;
  for (const Instruction& instruction : plan.train.programs[static_cast<size_t>(pp)])
    costs_.push_back(cost_of(plan, instruction));

  const std::vector<std::string> clocks = control.gather_text(clock_name());
  one_clock_ = std::all_of(clocks.begin(), clocks.end(),
                           [&](const std::string& name) { return name == clocks.front(); });
  unix_ns_ = std::stoll(control.gather_text(std::to_string(unix_ns_less_clock())).front());
  first_offset_ = measure_offset();
  agree(control, [&] {
    if (control.rank() == 0 && (first_ < end_ || gpus_are_sampled_)) set_earlier_aside();
  });
}

// A trace of another mesh, or one that cannot be read, is kept under another name.
void Recorder::set_earlier_aside() const {
  if (!fs::exists(path_)) return;
  std::string why;
  try {
    if (read_trace(path_).mesh == context_.plan().mesh) return;
    why = "is of another mesh";
  } catch (const Error& error) { why = format("cannot be continued ({})", error.what()); }
  fs::path free_name;
  for (int number = 1; free_name.empty() || fs::exists(free_name); ++number)
    free_name = path_.parent_path() / format("trace.{}.h5", number);
  fs::rename(path_, free_name);
  log::warn(format("{} {}: it is now {}", path_.string(), why, free_name.string()));
}

ClockOffset Recorder::measure_offset() {
  if (one_clock_) return {};
  return fit_offset(meet(control_, now_seconds, kMeetings));
}

void Recorder::host_work(HostWork what, int64_t step, double begin, double end) {
  if (!records(step)) return;
  const TraceEvent event{.name = static_cast<int32_t>(what), .lane = kMainLane, .step = step};
  waiting_.push_back({event, begin, end});
}

void Recorder::take(const Engine& engine, int64_t step) {
  if (!records(step) || step <= taken_) return;
  taken_ = step;
  if (memory_.empty() && published_step_ == 0) note_memory();
  const std::vector<Span> spans = engine.spans(step - 1);
  for (size_t i = 0; i < spans.size(); ++i) {
    const Instruction& instruction = spans[i].instruction;
    rows_.push_back({{.name = static_cast<int32_t>(instruction.op),
                      .lane = static_cast<int32_t>(instruction.lane),
                      .chunk = instruction.chunk,
                      .micro = instruction.micro,
                      .step = step,
                      .bytes = costs_[i].bytes,
                      .flops = costs_[i].flops},
                     spans[i].begin,
                     spans[i].end});
  }
  const auto complete = [&](const Row& row) { return row.event.step <= step; };
  std::copy_if(waiting_.begin(), waiting_.end(), std::back_inserter(rows_), complete);
  std::erase_if(waiting_, complete);
  HostSample sample = read_host_sample();
  sample.rank = control_.rank();
  sample.step = step;
  sample.time_ns = to_ns(now_seconds());
  samples_.push_back(sample);
}

// Memory is allocated before the first step and stays, so one look is enough.
void Recorder::note_memory() {
  const int64_t now = to_ns(now_seconds());
  for (const MemoryLine& line : context_.plan().memory(context_.coord().pp))
    memory_.push_back(
        {now, line.name, static_cast<int64_t>(line.bytes), line.home == Home::device ? 0 : 1});
  const Device& device = context_.device();
  memory_.push_back({now, "allocated", static_cast<int64_t>(device.allocated_bytes()), 0});
  const size_t blocks = driver_bytes(context_.plan(), context_.coord().pp);
  if (blocks > 0)
    memory_.push_back({now, "blocks, page tables and graphs", static_cast<int64_t>(blocks), 0});
  memory_.push_back(
      {now, "driver and libraries", static_cast<int64_t>(device.overhead_bytes()), 0});
}

// Steps are issued ahead.
bool Recorder::records_soon(int64_t step) const {
  return step + Engine::kRing >= first_ && step < end_;
}

void Recorder::step_waited(const Engine& engine, int64_t step) {
  if (sampler_) sampler_->set_step(step);
  take(engine, step - 1);
  if (!records(step - 1)) return;
  bool due = step == end_;
  if (published_at_ == 0) published_at_ = now_seconds();  // there is nothing older than this step
  if (!due) {
    // Clocks and rows differ from rank to rank: one that finds it due decides for all.
    const double pause = std::max(kPublishSeconds, publishing_seconds_ / kPublishShare);
    const bool mine = rows_.size() > kMostRows ||
                      (control_.rank() == 0 && now_seconds() - published_at_ >= pause);
    for (const std::string& vote : control_.gather_text(mine ? "1" : "0")) due |= vote == "1";
  }
  if (due) publish();
}

void Recorder::finish(const Engine& engine, int64_t step) {
  take(engine, step);
  if (taken_ > published_step_ || gpus_are_sampled_) publish();
}

RankRecord Recorder::harvest() {
  const ClockMap clock(first_offset_, measure_offset());
  const auto time = [&](double seconds) { return to_ns(clock.to_reference(seconds)) + unix_ns_; };
  RankRecord record;
  record.place = control_.place;
  record.host = host_name();
  record.device = context_.device().describe();
  record.clock_skew_ns = to_ns(clock.skew());
  for (const Row& row : rows_) {
    record.events.push_back(row.event);
    record.events.back().begin_ns = time(row.begin);
    record.events.back().end_ns = time(row.end);
  }
  for (MemoryRow& row : memory_) row.time_ns = time(static_cast<double>(row.time_ns) * 1e-9);
  for (HostSample& row : samples_) row.time_ns = time(static_cast<double>(row.time_ns) * 1e-9);
  if (sampler_) record.gpu_samples = sampler_->take();
  for (GpuSample& row : record.gpu_samples) {
    row.rank = control_.rank();
    row.time_ns = time(static_cast<double>(row.time_ns) * 1e-9);
  }
  record.memory = std::exchange(memory_, {});
  record.samples = std::exchange(samples_, {});
  rows_.clear();
  return record;
}

void Recorder::publish() {
  const double began = now_seconds();
  std::vector<std::byte> mine = pack(harvest());
  std::vector<size_t> sizes;
  for (const std::string& text : control_.gather_text(std::to_string(mine.size())))
    sizes.push_back(std::stoull(text));
  Stream& stream = context_.device().stream(Lane::host);
  const auto pass = [&](Direction direction, int peer, std::vector<std::byte>& bytes) {
    const TensorView view{bytes.data(), DType::u8, {static_cast<int64_t>(bytes.size())}};
    const Transfer transfer{direction, peer, view};
    control_.exchange({&transfer, 1}, stream);
    context_.device().wait_on_host(context_.device().record(stream));
  };
  if (control_.rank() != 0) {
    pass(Direction::send, 0, mine);
  } else {
    fs::path aside = path_;
    aside += ".partial";
    const Plan& plan = context_.plan();
    std::optional<TraceWriter> writer;
    std::string fault;
    // A trace is not worth a run; and all peers' rows must be taken, whatever becomes of them.
    const auto attempt = [&](const auto& work) {
      if (!fault.empty()) return;
      try {
        work();
      } catch (const std::exception& error) { fault = error.what(); }
    };
    attempt([&] {
      writer.emplace(aside, path_, plan.mesh, write_deck(plan.deck), epoch_samples_);
      writer->add(unpack(mine));
    });
    for (int peer = 1; peer < control_.size(); ++peer) {
      std::vector<std::byte> theirs(sizes[static_cast<size_t>(peer)]);
      pass(Direction::receive, peer, theirs);
      attempt([&] { writer->add(unpack(theirs)); });
    }
    attempt([&] {
      writer->finish();
      fs::rename(aside, path_);
      sync_folder(path_.parent_path());
    });
    if (!fault.empty())
      log::warn(format("what was recorded since step {} is lost, and training goes on: {}",
                       published_step_ + 1, fault));
  }
  published_step_ = taken_;
  published_at_ = now_seconds();
  publishing_seconds_ = published_at_ - began;
  host_work(HostWork::publish, taken_ + 2, began, published_at_);
}

}  // namespace voltapile
