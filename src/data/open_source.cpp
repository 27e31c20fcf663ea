#include <filesystem>
#include <string_view>

#include "voltapile/base/error.hpp"
#include "voltapile/data/data.hpp"

#include "idx.hpp"
#include "picture_folder.hpp"
#include "synthetic.hpp"

namespace voltapile {
namespace {

std::string_view name_of_format(DataFormat data_format) {
  switch (data_format) {
    case DataFormat::synthetic: return "synthetic";
    case DataFormat::idx: return "idx";
    case DataFormat::folder: return "folder";
    case DataFormat::tar: return "tar";
    case DataFormat::hdf5: return "hdf5";
  }
  return "?";
}

const std::string& path_of(const std::string& key, const std::string& path) {
  if (path.empty())
    throw Error(ExitCode::bad_input, format("{} is missing: data.format = \"idx\" reads its IDX "
                                            "file (plain or gzipped) from there",
                                            key));
  return path;
}

}  // namespace

std::shared_ptr<const Source> open_source(const Deck& deck, Part part) {
  const bool train = part == Part::train;
  const auto& [height, width] = deck.model.image;
  switch (deck.data.format) {
    case DataFormat::synthetic:
      return make_synthetic({.seed = deck.run.seed,
                             .part = part,
                             .count = train ? deck.data.synthetic_train : deck.data.synthetic_test,
                             .channels = deck.model.channels,
                             .height = height,
                             .width = width,
                             .classes = deck.model.classes});
    case DataFormat::idx: {
      IdxExpectation expected;
      expected.pictures_key = train ? "data.train" : "data.test";
      expected.labels_key = expected.pictures_key + "_labels";
      expected.pictures_path =
          path_of(expected.pictures_key, train ? deck.data.train : deck.data.test);
      expected.labels_path =
          path_of(expected.labels_key, train ? deck.data.train_labels : deck.data.test_labels);
      expected.channels = deck.model.channels;
      expected.height = height;
      expected.width = width;
      expected.classes = deck.model.classes;
      return open_idx(expected);
    }
    case DataFormat::folder:
    case DataFormat::tar:
    case DataFormat::hdf5: break;
  }
  throw Error(ExitCode::bad_input,
              format("data.format = \"{}\" is not read by this version, which reads \"idx\" and "
                     "\"synthetic\"",
                     name_of_format(deck.data.format)));
}

std::shared_ptr<const Source> open_pictures(const Deck& deck, const std::string& key,
                                            const std::string& path) {
  if (std::filesystem::is_directory(path)) return open_picture_folder(deck, key, path);
  IdxExpectation expected;
  expected.pictures_key = key;
  expected.pictures_path = path;
  expected.channels = deck.model.channels;
  expected.height = deck.model.image[0];
  expected.width = deck.model.image[1];
  return open_idx(expected);
}

}  // namespace voltapile
