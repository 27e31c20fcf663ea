#include "divergence.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <sstream>

#include "voltapile/base/host.hpp"

namespace voltapile {

namespace {

constexpr size_t kStagingBytes = size_t{4} << 20;

template <class T>
bool is_finite(const std::byte* data, size_t bytes) {
  const auto* values = reinterpret_cast<const T*>(data);
  return std::all_of(values, values + bytes / sizeof(T),
                     [](T value) { return std::isfinite(static_cast<float>(value)); });
}

bool is_finite(DType type, const std::byte* data, size_t bytes) {
  switch (type) {
    case DType::f32: return is_finite<float>(data, bytes);
    case DType::f16: return is_finite<Half>(data, bytes);
    case DType::bf16: return is_finite<BFloat16>(data, bytes);
    default: VP_CHECK(false, "weights of type {}", name_of(type));
  }
  return false;
}

bool is_finite(const RankContext& context, const TensorView& tensor, Buffer& staging) {
  Device& device = context.device();
  Stream& stream = device.stream(Lane::d2h);
  for (size_t begin = 0; begin < tensor.bytes(); begin += kStagingBytes) {
    const size_t bytes = std::min(kStagingBytes, tensor.bytes() - begin);
    device.copy(staging.data(), static_cast<const std::byte*>(tensor.data) + begin, bytes, stream);
    device.wait_on_host(device.record(stream));
    if (!is_finite(tensor.dtype, staging.data(), bytes)) return false;
  }
  return true;
}

// Places of this rank's first bad tensor in the model: layer and parameter.
std::optional<std::pair<int, int>> first_bad(const RankContext& context) {
  Buffer staging = context.device().allocate_host(kStagingBytes, "weights to be looked at");
  std::optional<std::pair<int, int>> found;
  for (int chunk : context.chunks()) {
    context.bring(chunk);
    const TensorView weights = context.weights(chunk);
    for (const FlatEntry& entry :
         context.plan().chunks[static_cast<size_t>(chunk)].parameters.entries) {
      const TensorView tensor = weights.slice_flat(entry.offset, entry.offset + entry.elements);
      // No early end: bring() is collective.
      if (!found && !is_finite(context, tensor, staging)) found = {entry.layer, entry.parameter};
    }
  }
  return found;
}

}  // namespace

void DivergenceJudge::note(const TrainRecord& record) {
  skipped_in_a_row_ = record.skipped ? skipped_in_a_row_ + 1 : 0;
  if (record.skipped || !std::isfinite(record.loss)) return;
  losses_.push_back(record.loss);
  if (losses_.size() > kWindow) losses_.pop_front();
}

void DivergenceJudge::take_over(const MetricLines& lines, int64_t step) {
  for (const TrainRecord& record : lines.train)
    if (record.step <= step) note(record);
}

std::optional<DivergenceJudge::Verdict> DivergenceJudge::judge(const TrainRecord& record,
                                                               const std::string& bad_gradient) {
  const double mean = std::accumulate(losses_.begin(), losses_.end(), 0.0) / kWindow;
  const bool may_spike = rules_.spike_factor > 0 && losses_.size() == kWindow &&
                         record.loss > rules_.spike_factor * mean;
  note(record);
  if (record.skipped && !skips_) {
    return Verdict{.first_step = record.step,
                   .cause = format("the gradient of {} is not finite in step {}, whose weights "
                                   "were updated before that was known; optimizer.clip_norm_from "
                                   "= \"this_step\" skips such a step",
                                   bad_gradient, record.step)};
  }
  if (record.skipped) {
    if (skipped_in_a_row_ < rules_.skip_limit) return std::nullopt;
    return Verdict{
        .first_step = record.step - skipped_in_a_row_ + 1,
        .cause = format("{} steps in a row had a gradient that is not finite (run.skip_limit), "
                        "first in {}, at loss scale {}",
                        skipped_in_a_row_, bad_gradient, record.loss_scale)};
  }
  if (!std::isfinite(record.loss)) {
    return Verdict{.first_step = record.step,
                   .cause = format("the loss of step {} is not finite", record.step)};
  }
  if (!may_spike) return std::nullopt;
  return Verdict{
      .first_step = record.step,
      .cause = format("the loss of step {} is {:.4g}, over run.spike_factor = {} times {:.4g}, the "
                      "mean of the {} steps before it",
                      record.step, record.loss, rules_.spike_factor, mean, kWindow)};
}

int64_t rewinds_before(const MetricLines& lines, int64_t step) {
  int64_t rewinds = 0;
  for (const RewindRecord& record : lines.rewinds)
    if (record.step <= step) rewinds = std::max(rewinds, record.rewinds);
  return rewinds;
}

std::string find_bad_weights(const RankContext& context, Communicator& control) {
  const auto mine = first_bad(context);
  const std::string text =
      mine ? format("{} {} {} on {}", mine->first, mine->second, control.place, host_name()) : "";
  std::optional<std::pair<int, int>> worst;
  std::vector<std::string> holders;
  for (const std::string& line : control.gather_text(text)) {
    if (line.empty()) continue;
    std::istringstream words(line);
    std::pair<int, int> place;
    std::string holder;
    words >> place.first >> place.second;
    std::getline(words >> std::ws, holder);
    if (!worst || place < *worst) holders.clear();
    if (!worst || place <= *worst) {
      worst = place;
      holders.push_back(holder);
    }
  }
  if (!worst) return {};
  const Layer& layer = context.plan().architecture.layers[static_cast<size_t>(worst->first)];
  return format("weights of {} on {}", layer.parameters[static_cast<size_t>(worst->second)].name,
                join(holders, ", "));
}

}  // namespace voltapile
