#include <algorithm>
#include <limits>
#include <span>

#include <nlohmann/json.hpp>

#include "voltapile/checkpoint/durable.hpp"
#include "voltapile/deck/parse.hpp"
#include "voltapile/report/report.hpp"

#include "transfers.hpp"

namespace voltapile {
namespace {

// As JSON, with its quotes.
std::string quoted(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

class Events {
 public:
  explicit Events(int64_t begin_ns) : begin_ns_(begin_ns) {}

  void metadata(size_t rank, int lane, const char* what, const std::string& name) {
    add(R"({{"ph":"M","pid":{},"tid":{},"name":"{}","args":{{"name":{}}}}})", rank, lane, what,
        quoted(name));
  }
  void order(size_t rank, int lane) {
    add(R"({{"ph":"M","pid":{0},"tid":{1},"name":"thread_sort_index",)"
        R"("args":{{"sort_index":{1}}}}})",
        rank, lane);
  }
  void span(size_t rank, const TraceEvent& event) {
    add(R"({{"ph":"X","pid":{},"tid":{},"cat":"{}","name":"{}",)"
        R"("ts":{},"dur":{},"args":{{"step":{})",
        rank, event.lane, event_lane(event.lane), event_name(event.name), micros(event.begin_ns),
        thousandths(event.end_ns - event.begin_ns), event.step);
    if (event.chunk >= 0) text_ += format(R"(,"chunk":{})", event.chunk);
    if (event.micro >= 0) text_ += format(R"(,"micro":{})", event.micro);
    if (event.bytes > 0) text_ += format(R"(,"bytes":{})", event.bytes);
    if (event.flops > 0) text_ += format(R"(,"flops":{:.0f})", event.flops);
    text_ += "}}";
  }
  // From the beginning of a send to the end of its receive.
  void arrow(size_t id, const MatchedTransfer& t) {
    arrow_end("\"ph\":\"s\"", id, t.from, t.send->lane, t.send->begin_ns);
    arrow_end("\"ph\":\"f\",\"bp\":\"e\"", id, t.to, t.receive->lane, t.receive->end_ns);
  }
  void memory(size_t rank, const HostSample& sample) {
    add(R"({{"ph":"C","pid":{},"name":"resident bytes","ts":{},"args":{{"bytes":{}}}}})", rank,
        micros(sample.time_ns), sample.resident_bytes);
  }
  std::string take() { return std::move(text_) + "\n],\"displayTimeUnit\":\"ms\"}\n"; }

 private:
  void arrow_end(const char* phase, size_t id, int rank, int32_t lane, int64_t ns) {
    add(R"({{{},"id":{},"pid":{},"tid":{},"cat":"transfer","name":"transfer","ts":{}}})", phase, id,
        rank, lane, micros(ns));
  }
  template <class... Arguments>
  void add(fmt::format_string<Arguments...> text, Arguments&&... arguments) {
    text_ += first_ ? "\n" : ",\n";
    first_ = false;
    fmt::format_to(std::back_inserter(text_), text, std::forward<Arguments>(arguments)...);
  }
  // The format's times are microseconds; digits after the point are allowed.
  static std::string thousandths(int64_t ns) { return format("{}.{:03}", ns / 1000, ns % 1000); }
  std::string micros(int64_t ns) const { return thousandths(std::max<int64_t>(0, ns - begin_ns_)); }

  std::string text_ = "{\"traceEvents\":[";
  bool first_ = true;
  int64_t begin_ns_;
};

int64_t first_moment(const Trace& trace) {
  int64_t begin = std::numeric_limits<int64_t>::max();
  for (const RankRecord& rank : trace.ranks) {
    for (const TraceEvent& event : rank.events) begin = std::min(begin, event.begin_ns);
    for (const HostSample& sample : rank.samples) begin = std::min(begin, sample.time_ns);
  }
  return begin;
}

}  // namespace

void write_perfetto(const Trace& trace, const std::filesystem::path& path) {
  Events events(first_moment(trace));
  for (size_t rank = 0; rank < trace.ranks.size(); ++rank) {
    const RankRecord& record = trace.ranks[rank];
    events.metadata(rank, 0, "process_name", format("{} on {}", record.place, record.host));
    std::array<bool, kEventLanes> used{};
    for (const TraceEvent& event : record.events) used[static_cast<size_t>(event.lane)] = true;
    for (int lane = 0; lane < kEventLanes; ++lane) {
      if (!used[static_cast<size_t>(lane)]) continue;
      events.metadata(rank, lane, "thread_name", std::string(event_lane(lane)));
      events.order(rank, lane);
    }
    for (const TraceEvent& event : record.events) events.span(rank, event);
    for (const HostSample& sample : record.samples) events.memory(rank, sample);
  }
  size_t id = 0;
  const Plan plan = make_plan(parse_deck(trace.deck, "trace.h5"));
  for (const MatchedTransfer& transfer : match_transfers(trace, plan)) events.arrow(id++, transfer);
  const std::string text = events.take();
  publish_file(path, std::as_bytes(std::span(text)));
}

}  // namespace voltapile
