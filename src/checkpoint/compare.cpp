#include <algorithm>
#include <cmath>
#include <set>

#include "voltapile/checkpoint/interchange.hpp"

#include "whole.hpp"

namespace voltapile {
namespace {

TensorDifference compare(const std::string& name, const std::vector<float>& a,
                         const std::vector<float>& b) {
  TensorDifference found{.name = name};
  double magnitude = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double x = a[i], y = b[i];
    magnitude = std::max({magnitude, std::fabs(x), std::fabs(y)});
    if (x == y) continue;  // two equal infinities, too
    ++found.elements;
    found.largest = std::max(found.largest, std::fabs(x - y));
  }
  if (found.elements > 0) found.relative = found.largest / magnitude;
  return found;
}

void compare_state(const WholeTensors& a, const WholeTensors& b, const std::string& state,
                   CheckpointDifference& difference) {
  const std::string prefix = state == "master" ? "" : state + "/";
  const std::vector<std::string> left = a.names(state), right = b.names(state);
  const std::set<std::string> in_a(left.begin(), left.end()), in_b(right.begin(), right.end());
  for (const std::string& name : in_b)
    if (!in_a.contains(name)) difference.others.push_back(prefix + name + ": only in B");
  for (const std::string& name : in_a) {
    if (!in_b.contains(name)) {
      difference.others.push_back(prefix + name + ": only in A");
      continue;
    }
    const Shape shape_a = a.shape(state, name), shape_b = b.shape(state, name);
    if (shape_a != shape_b) {
      difference.others.push_back(
          format("{}{}: {} in A, {} in B", prefix, name, shape_a.text(), shape_b.text()));
      continue;
    }
    ++difference.tensors;
    TensorDifference one = compare(prefix + name, a.read(state, name), b.read(state, name));
    if (one.elements > 0) difference.values.push_back(std::move(one));
  }
}

}  // namespace

CheckpointDifference compare_checkpoints(const std::filesystem::path& a,
                                         const std::filesystem::path& b, Compared what) {
  const WholeTensors left(a), right(b);
  CheckpointDifference difference{.step_a = left.state().step, .step_b = right.state().step};
  compare_state(left, right, "master", difference);
  if (what == Compared::weights_and_moments)
    for (const char* state : {"m", "v"}) compare_state(left, right, state, difference);
  return difference;
}

std::string describe(const CheckpointDifference& difference) {
  std::string text =
      format("A is of step {}, B of step {}\n", difference.step_a, difference.step_b);
  if (!difference.values.empty()) {
    size_t width = 6;
    for (const TensorDifference& one : difference.values) width = std::max(width, one.name.size());
    text += format("{:<{}}  {:>12}  {:>10}  {:>10}\n", "tensor", width, "elements", "largest",
                   "relative");
    for (const TensorDifference& one : difference.values)
      text += format("{:<{}}  {:>12}  {:>10.3e}  {:>10.3e}\n", one.name, width, one.elements,
                     one.largest, one.relative);
  }
  for (const std::string& line : difference.others) text += line + "\n";
  const auto differ = static_cast<int64_t>(difference.values.size());
  text += format("{} tensors are equal, {} differ", difference.tensors - differ, differ);
  if (!difference.others.empty())
    text += format(", {} cannot be compared", difference.others.size());
  return text + "\n";
}

}  // namespace voltapile
