#include "figures.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "voltapile/base/format.hpp"
#include "voltapile/plan/costs.hpp"

namespace voltapile {
namespace {

constexpr size_t kLastSteps = 50;

}  // namespace

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

Throughput throughput(const std::vector<TrainRecord>& train) {
  Throughput result;
  result.steps = std::min(train.size(), kLastSteps);
  std::vector<double> rates, seconds;
  for (size_t i = train.size() - result.steps; i < train.size(); ++i) {
    rates.push_back(train[i].samples_per_second);
    seconds.push_back(train[i].seconds);
  }
  result.samples_per_second = median(rates);
  result.step_seconds = median(seconds);
  return result;
}

std::string spark(const std::vector<double>& values, size_t columns) {
  static constexpr std::array<const char*, 8> kBars{"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
  std::vector<double> means;
  const size_t cells = std::min(columns, values.size());
  for (size_t cell = 0; cell < cells; ++cell) {
    double sum = 0;
    int count = 0;
    for (size_t i = cell * values.size() / cells; i < (cell + 1) * values.size() / cells; ++i) {
      if (!std::isfinite(values[i])) continue;
      sum += values[i];
      ++count;
    }
    means.push_back(count ? sum / count : std::numeric_limits<double>::quiet_NaN());
  }
  double low = std::numeric_limits<double>::infinity(), high = -low;
  for (const double mean : means) {
    if (!std::isfinite(mean)) continue;
    low = std::min(low, mean);
    high = std::max(high, mean);
  }
  std::string text;
  for (const double mean : means) {
    if (!std::isfinite(mean)) {
      text += " ";
      continue;
    }
    const double height = high > low ? (mean - low) / (high - low) : 0.5;
    text += kBars[static_cast<size_t>(std::lround(height * 7))];
  }
  return text;
}

double model_flops(const Plan& plan) {
  double micro = 0;
  for (const Chunk& chunk : plan.chunks) micro += flops_of(plan, chunk).model();
  return micro * static_cast<double>(plan.deck.batch.global) /
         static_cast<double>(plan.deck.batch.micro);
}

std::string show_percent(double share) { return format("{:.1f} %", 100 * share); }

std::string optional_percent(const std::optional<double>& share) {
  return share ? show_percent(*share) : "-";
}

}  // namespace voltapile
