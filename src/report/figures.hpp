// Private to report: figures of the metrics, and a curve in text.
#pragma once
#include <string>
#include <vector>

#include "voltapile/plan/plan.hpp"
#include "voltapile/train/metrics.hpp"

namespace voltapile {

struct Throughput {
  double samples_per_second = 0, step_seconds = 0;  // medians of the last steps
  size_t steps = 0;                                 // how many of them
};
Throughput throughput(const std::vector<TrainRecord>& train);

// Bars of `columns` cells at most, each the mean of the finite values in it: "▇▆▅▃▂▁".
std::string spark(const std::vector<double>& values, size_t columns);

// Multiply-adds of a step's samples through the model, counted as two; recomputation left out.
double model_flops(const Plan& plan);

std::string show_percent(double share);  // "12.3 %"

}  // namespace voltapile
