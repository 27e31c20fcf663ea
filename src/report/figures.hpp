// Private to report: figures of the metrics, and a curve in text.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "voltapile/plan/plan.hpp"
#include "voltapile/train/metrics.hpp"

namespace voltapile {

// The upper one of two; 0 of nothing.
double median(std::vector<double> values);

struct Throughput {
  double samples_per_second = 0, step_seconds = 0;  // medians of the last steps
  size_t steps = 0;                                 // how many of them
};
Throughput throughput(const std::vector<TrainRecord>& train);

// Bars of `columns` cells at most, each the mean of the finite values in it: "▇▆▅▃▂▁".
std::string spark(const std::vector<double>& values, size_t columns);

// Multiply-adds of a step's samples through the model, counted as two; recomputation left out.
double model_flops(const Plan& plan);

std::string show_percent(double share);                            // "12.3 %"
std::string optional_percent(const std::optional<double>& share);  // "-" without one

}  // namespace voltapile
