#include "picture_folder.hpp"

#include <algorithm>
#include <cctype>
#include <filesystem>

#include "voltapile/base/error.hpp"
#include "voltapile/base/units.hpp"

#include "picture_file.hpp"

namespace voltapile {
namespace {

namespace fs = std::filesystem;

bool named_as_picture(const fs::path& file) {
  std::string end = file.extension().string();
  std::transform(end.begin(), end.end(), end.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return end == ".png" || end == ".jpg" || end == ".jpeg";
}

std::vector<std::string> find_pictures(const std::string& key, const fs::path& folder) {
  std::vector<std::string> names;
  try {
    for (auto at = fs::recursive_directory_iterator(folder);
         at != fs::recursive_directory_iterator(); ++at) {
      if (at->path().filename().string().starts_with('.')) at.disable_recursion_pending();
      else if (at->is_regular_file() && named_as_picture(at->path()))
        names.push_back(at->path().lexically_relative(folder).generic_string());
    }
  } catch (const fs::filesystem_error& error) {
    throw Error(ExitCode::bad_data, format("{} = \"{}\": this folder cannot be read: {}", key,
                                           folder.string(), error.code().message()));
  }
  std::sort(names.begin(), names.end());
  return names;
}

class PictureFolder final : public Source {
 public:
  PictureFolder(fs::path folder, std::vector<std::string> names, const Deck::Model& model)
      : folder_(std::move(folder)),
        names_(std::move(names)),
        channels_(model.channels),
        height_(model.image[0]),
        width_(model.image[1]) {}

  int64_t size() const override { return static_cast<int64_t>(names_.size()); }
  std::string describe() const override {
    return format("{} picture files in {}", show_grouped(size()), folder_.string());
  }
  std::string name(int64_t index) const override { return names_.at(static_cast<size_t>(index)); }

  void read(int64_t index, std::span<uint8_t> picture, int32_t& label) const override {
    label = 0;
    if (picture.empty()) return;
    fit_picture(read_picture(folder_ / name(index)), channels_, height_, width_, picture);
  }

 private:
  const fs::path folder_;
  const std::vector<std::string> names_;
  const int64_t channels_, height_, width_;
};

}  // namespace

std::shared_ptr<const Source> open_picture_folder(const Deck& deck, const std::string& key,
                                                  const std::string& path) {
  if (deck.model.channels != 1 && deck.model.channels != 3)
    throw Error(ExitCode::bad_input,
                format("{} = \"{}\": picture files have 1 or 3 channels, and model.channels is {}: "
                       "name an IDX file",
                       key, path, deck.model.channels));
  std::vector<std::string> names = find_pictures(key, path);
  if (names.empty())
    throw Error(
        ExitCode::bad_data,
        format("{} = \"{}\": no file in this folder is named *.png, *.jpg or *.jpeg", key, path));
  return std::make_shared<PictureFolder>(path, std::move(names), deck.model);
}

}  // namespace voltapile
