#include "fit.hpp"

#include <charconv>
#include <cmath>
#include <map>
#include <set>

#include "weight_names.hpp"

namespace voltapile {
namespace {

using safetensors::show_name;
using safetensors::Tensor;

std::string text_of(const Grid& grid) { return format("{} x {}", grid.height, grid.width); }

int64_t whole_number(std::string_view text) {
  int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size() ? number : -1;
}

class Fitter {
 public:
  Fitter(const safetensors::Layout& layout, const Architecture& architecture)
      : layout_(layout), architecture_(architecture), names_(detect_names(layout)) {
    for (const Tensor& tensor : layout.tensors) tensors_[tensor.name] = &tensor;
  }

  Fit fit() {
    check_heads();
    for (const Layer& layer : architecture_.layers)
      for (const Parameter& parameter : layer.parameters)
        fit_.sources.push_back({&parameter, find_parts(parameter), std::nullopt});
    // The position embedding and the head may differ from the deck's; nothing else may.
    for (WeightSource& source : fit_.sources) {
      if (source.parameter->name == "pos_embed") fit_position(source);
      else if (!source.parameter->name.starts_with("head.")) check_present(source);
    }
    fit_head();
    leave_out_class_token();
    for (const Tensor& tensor : layout_.tensors) {
      if (used_.contains(tensor.name)) continue;
      if (is_unused(names_, tensor.name)) fit_.notes.push_back(tensor.name + ": left out");
      else fit_.faults.push_back(format("{}: superfluous", show_name(tensor.name)));
    }
    return std::move(fit_);
  }

 private:
  const Tensor* find(const std::string& name) {
    const auto at = tensors_.find(name);
    if (at == tensors_.end()) return nullptr;
    used_.insert(name);
    return at->second;
  }

  // Faults of a part are reported once, here: it counts as found all the same.
  std::vector<const Tensor*> find_parts(const Parameter& parameter) {
    std::vector<const Tensor*> parts;
    for (const std::string& name : names_in_file(names_, parameter.name)) {
      const Tensor* tensor = find(name);
      if (tensor == nullptr && parameter.name.starts_with("fc_norm."))
        tensor = find(parameter.name.substr(3));
      if (tensor != nullptr && parameter.name == "fc_norm.weight" && tensor->name != parameter.name)
        fit_.notes.push_back(tensor->name +
                             ": becomes fc_norm.weight: the norm of each token there, of their "
                             "mean here (pool = \"mean\")");
      if (tensor == nullptr) {
        missing_[parameter.name].push_back(name);
        continue;
      }
      if (!safetensors::is_floating(tensor->dtype))
        fit_.faults.push_back(format("{}: of type {}; weights are F64, F32, F16 or BF16",
                                     tensor->name, tensor->dtype));
      parts.push_back(tensor);
    }
    return parts;
  }

  void report_missing(const WeightSource& source) {
    for (const std::string& name : missing_[source.parameter->name])
      fit_.faults.push_back(name + ": missing");
  }
  void report_shape(const Tensor& tensor, const Shape& wanted) {
    fit_.faults.push_back(
        format("{}: {} there, {} here", tensor.name, tensor.shape.text(), wanted.text()));
  }

  void check_present(const WeightSource& source) {
    report_missing(source);
    Shape wanted = source.parameter->shape;
    const auto parts =
        static_cast<int64_t>(source.parts.size() + missing_[source.parameter->name].size());
    if (parts > 1) wanted.set(0, wanted[0] / parts);
    for (const Tensor* tensor : source.parts)
      if (tensor->shape != wanted) report_shape(*tensor, wanted);
  }

  // Only the file's metadata can tell: no shape depends on it.
  void check_heads() {
    const auto heads = layout_.metadata.find("heads");
    if (!layout_.metadata.contains("voltapile") || heads == layout_.metadata.end()) return;
    const int64_t there = whole_number(heads->second);
    if (there > 0 && there != architecture_.model.heads)
      fit_.faults.push_back(
          format("model.heads: {} there, {} here", there, architecture_.model.heads));
  }

  bool file_has_class_token() const {
    return tensors_.contains(names_in_file(names_, "cls_token").front());
  }

  // An export's own words, if they are about a table of so many rows.
  std::optional<PositionRows> told_rows(int64_t rows) const {
    const auto told = layout_.metadata.find("grid");
    if (told == layout_.metadata.end()) return std::nullopt;
    const std::string_view text = told->second;
    const size_t cross = text.find('x');
    if (cross == std::string_view::npos) return std::nullopt;
    const Grid grid{whole_number(text.substr(0, cross)), whole_number(text.substr(cross + 1))};
    if (grid.height <= 0 || grid.width <= 0 || grid.height > rows ||
        grid.width > rows / grid.height)
      return std::nullopt;
    const int64_t prefix = rows - grid.cells();
    if (prefix != 0 && !(prefix == 1 && file_has_class_token())) return std::nullopt;
    return PositionRows{prefix, grid};
  }

  std::optional<PositionRows> position_rows(int64_t rows) const {
    if (const auto told = told_rows(rows)) return told;
    const Grid own{architecture_.grid_height(), architecture_.grid_width()};
    // timm's no_embed_class gives the class token no row.
    std::vector<int64_t> prefixes = {0};
    if (file_has_class_token()) prefixes = {1, 0};
    for (const int64_t prefix : prefixes)
      if (rows - prefix == own.cells()) return PositionRows{prefix, own};
    for (const int64_t prefix : prefixes) {
      if (rows <= prefix) continue;
      const auto side =
          static_cast<int64_t>(std::lround(std::sqrt(static_cast<double>(rows - prefix))));
      if (side > 0 && side * side == rows - prefix) return PositionRows{prefix, {side, side}};
    }
    return std::nullopt;
  }

  void fit_position(WeightSource& source) {
    if (source.parts.empty()) {
      // A fixed table is computed.
      if (source.parameter->trained) report_missing(source);
      return;
    }
    const Tensor& tensor = *source.parts.front();
    const Shape& wanted = source.parameter->shape;
    if (tensor.shape.dims() != 3 || tensor.shape[0] != 1 || tensor.shape[2] != wanted[2])
      return report_shape(tensor, wanted);
    source.position = position_rows(tensor.shape[1]);
    if (!source.position) {
      fit_.faults.push_back(format("{}: {} positions are neither this model's {} nor a square grid",
                                   tensor.name, tensor.shape[1], wanted[1]));
      return;
    }
    const Grid own{architecture_.grid_height(), architecture_.grid_width()};
    if (source.position->grid != own)
      fit_.notes.push_back(format("{}: resized from {} to {} positions (bicubic, antialiased)",
                                  tensor.name, text_of(source.position->grid), text_of(own)));
  }

  void fit_head() {
    WeightSource& weight = fit_.sources[fit_.sources.size() - 2];
    WeightSource& bias = fit_.sources.back();
    const Shape& wanted = weight.parameter->shape;
    const auto renew = [&](const std::string& why) {
      weight.parts.clear();
      bias.parts.clear();
      fit_.notes.push_back(format("head: new, for {} classes: {}", wanted[0], why));
    };
    if (weight.parts.empty() && bias.parts.empty()) return renew("the file has none");
    if (weight.parts.empty() || bias.parts.empty()) {
      check_present(weight);
      return check_present(bias);
    }
    const Shape &matrix = weight.parts.front()->shape, &offsets = bias.parts.front()->shape;
    const bool whole = matrix.dims() == 2 && offsets.dims() == 1 && matrix[0] == offsets[0] &&
                       matrix[1] == wanted[1];
    if (whole && matrix[0] != wanted[0]) return renew(format("{} in the file", matrix[0]));
    check_present(weight);
    check_present(bias);
  }

  void leave_out_class_token() {
    if (architecture_.model.pool == Pool::token) return;
    if (const Tensor* token = find(names_in_file(names_, "cls_token").front()))
      fit_.notes.push_back(token->name + ": left out, with its position (pool = \"mean\")");
  }

  const safetensors::Layout& layout_;
  const Architecture& architecture_;
  NamesInFile names_;
  std::map<std::string, const Tensor*> tensors_;
  std::set<std::string> used_;
  std::map<std::string, std::vector<std::string>> missing_;  // by parameter
  Fit fit_;
};

}  // namespace

Fit fit_weights(const safetensors::Layout& layout, const Architecture& architecture) {
  return Fitter(layout, architecture).fit();
}

}  // namespace voltapile
