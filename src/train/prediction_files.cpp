#include "prediction_files.hpp"

#include <algorithm>
#include <numeric>

#include "voltapile/base/format.hpp"
#include "voltapile/checkpoint/durable.hpp"
#include "voltapile/h5/h5.hpp"

namespace voltapile {
namespace {

int told(const PredictionFacts& facts) {
  return static_cast<int>(std::min<int64_t>(kToldClasses, facts.classes));
}

// As RFC 4180 has it, where a comma or the like stands in it.
std::string quoted(const std::string& text) {
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  std::string all = "\"";
  for (const char c : text) all += c == '"' ? "\"\"" : std::string(1, c);
  return all + '"';
}

// A column of text as wide as the longest.
void write_paths(h5::File& h5, const std::vector<std::string>& paths) {
  size_t width = 1;
  for (const std::string& path : paths) width = std::max(width, path.size());
  std::string rows(paths.size() * width, '\0');
  for (size_t i = 0; i < paths.size(); ++i) rows.replace(i * width, paths[i].size(), paths[i]);
  const h5::Field column{.name = "path", .text_bytes = width};
  h5.write_table("files", std::span(&column, 1), width, rows.data(),
                 static_cast<int64_t>(paths.size()));
}

}  // namespace

void write_csv(const std::filesystem::path& file, std::span<const Prediction> predictions,
               const PredictionFacts& facts) {
  const int count = told(facts);
  std::string text = facts.paths.empty() ? "index" : "index,path";
  for (int k = 1; k <= count; ++k) text += format(",class_{0},probability_{0}", k);
  text += '\n';
  for (size_t i = 0; i < predictions.size(); ++i) {
    text += std::to_string(i);
    if (!facts.paths.empty()) text += ',' + quoted(facts.paths[i]);
    for (size_t k = 0; k < static_cast<size_t>(count); ++k)
      text += format(",{},{}", predictions[i].classes[k], predictions[i].probabilities[k]);
    text += '\n';
  }
  publish_file(file, std::as_bytes(std::span(text)));
}

void write_h5(const std::filesystem::path& file, std::span<const Prediction> predictions,
              const PredictionFacts& facts) {
  const auto n = static_cast<int64_t>(predictions.size());
  const int count = told(facts);
  std::vector<int64_t> index(predictions.size());
  std::iota(index.begin(), index.end(), int64_t{0});
  std::vector<int32_t> classes;
  std::vector<float> probabilities;
  for (const Prediction& p : predictions) {
    classes.insert(classes.end(), p.classes.begin(), p.classes.begin() + count);
    probabilities.insert(probabilities.end(), p.probabilities.begin(),
                         p.probabilities.begin() + count);
  }
  h5::File h5 = h5::File::create_in_memory(file);
  h5.set_attribute("checkpoint", facts.checkpoint);
  h5.set_attribute("step", facts.step);
  h5.set_attribute("weights", facts.weights);
  h5.set_attribute("pictures", facts.pictures);
  h5.set_attribute("deck", facts.deck);
  h5.create_dataset("index", DType::i64, {n}).write(index.data(), DType::i64);
  h5.create_dataset("classes", DType::i32, {n, count}).write(classes.data(), DType::i32);
  h5.create_dataset("probabilities", DType::f32, {n, count})
      .write(probabilities.data(), DType::f32);
  if (!facts.paths.empty()) write_paths(h5, facts.paths);
  publish_file(file, h5.close_image());
}

}  // namespace voltapile
