// Reads what tools/make_timm_reference.py wrote; the script's heading describes the format.
#pragma once
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "harness.hpp"

namespace voltapile::test {

class TimmReference {
 public:
  explicit TimmReference(const std::filesystem::path& path);
  const std::vector<double>& values(const std::string& name) const;
  double value(const std::string& name) const { return values(name).front(); }
  double value_or(const std::string& name, double fallback) const {
    return values_.contains(name) ? value(name) : fallback;
  }
  bool has(const std::string& tensor) const { return tensors_.contains(tensor); }
  std::vector<double> tensor(const std::string& name) const;
  // All tensors called PREFIX/NAME, by NAME.
  Values tensors_under(const std::string& prefix) const;

  Deck deck() const;
  int64_t steps() const;
  int64_t samples() const;  // per step
  Batch batch(int64_t step) const;

 private:
  struct Entry {
    std::string type;
    size_t offset;
    std::vector<int64_t> dims;
    int64_t elements() const;
  };
  const Entry& entry(const std::string& name) const;
  // One step's part of a tensor that has a step dimension.
  template <class Stored, class T>
  void copy_step(const std::string& name, int64_t step, std::vector<T>& out) const;

  std::map<std::string, std::vector<double>> values_;
  std::map<std::string, Entry> tensors_;
  std::vector<char> data_;
};

}  // namespace voltapile::test
