// Private to report: what the page's script draws, as JSON.
#pragma once
#include <nlohmann/json.hpp>

#include "voltapile/report/report.hpp"

namespace voltapile {

// {name, facts: [[name, value]...], metrics: {column: [...]}, eval: {...}, advice: [...], and,
// where steps were recorded, analysis, operations, trace, heat, memory, samples}. Fields are
// described where page_data.cpp fills them.
nlohmann::json page_data(const Run& run);
// Rows of the comparison of two runs: [name, a, b, change].
nlohmann::json comparison_data(const Run& a, const Run& b);

}  // namespace voltapile
