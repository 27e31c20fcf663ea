#include <array>
#include <random>

#include "voltapile/base/error.hpp"
#include "voltapile/data/data.hpp"

#include "idx_files.hpp"

namespace voltapile {
namespace {

constexpr uint32_t kLabelsMagic = 0x00000801, kGrayMagic = 0x00000803, kColourMagic = 0x00000804;

// Three pictures of 1 x 4 x 5 with labels 2, 0, 1 as they should be; each test damages one thing.
class IdxTest : public testing::Test {
 protected:
  IdxTest() {
    std::mt19937 random(1);
    for (uint8_t& byte : pixels) byte = static_cast<uint8_t>(random());
    deck.data.format = DataFormat::idx;
    deck.model.image = {4, 5};
    deck.model.channels = 1;
    deck.model.classes = 3;
    set(idx(kGrayMagic, {3, 4, 5}, pixels), idx(kLabelsMagic, {3}, labels));
  }

  void set(const Bytes& picture_file, const Bytes& label_file) {
    deck.data.train = folder.write("pictures", picture_file);
    deck.data.train_labels = folder.write("labels", label_file);
  }

  void expect_contents() const {
    const auto source = open_source(deck, Part::train);
    const size_t picture_bytes = pixels.size() / labels.size();
    ASSERT_EQ(source->size(), static_cast<int64_t>(labels.size()));
    for (size_t i = 0; i < labels.size(); ++i) {
      Bytes picture(picture_bytes);
      int32_t label = -1;
      source->read(static_cast<int64_t>(i), picture, label);
      EXPECT_EQ(label, labels[i]);
      EXPECT_TRUE(std::equal(picture.begin(), picture.end(), pixels.begin() + i * picture_bytes));
      label = -1;
      source->read(static_cast<int64_t>(i), {}, label);
      EXPECT_EQ(label, labels[i]);
    }
  }

  // Opening fails with this code, and the message holds every one of the parts.
  void expect_fault(ExitCode code, const std::vector<std::string>& parts,
                    Part part = Part::train) const {
    try {
      open_source(deck, part);
      ADD_FAILURE() << "opened";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), code);
      for (const std::string& text : parts)
        EXPECT_NE(std::string(error.what()).find(text), std::string::npos)
            << "no \"" << text << "\" in: " << error.what();
    }
  }

  Folder folder;
  Deck deck;
  Bytes pixels = Bytes(3 * 4 * 5);
  Bytes labels = {2, 0, 1};
};

TEST_F(IdxTest, ReadsPlainFiles) { expect_contents(); }

TEST_F(IdxTest, ReadsGzippedFilesWhateverTheirName) {
  set(gzip(idx(kGrayMagic, {3, 4, 5}, pixels)), gzip(idx(kLabelsMagic, {3}, labels)));
  expect_contents();
}

TEST_F(IdxTest, ReadsGzipFilesOfSeveralStreams) {
  const Bytes file = idx(kGrayMagic, {3, 4, 5}, pixels);
  const auto middle = file.begin() + 33;
  set(gzip({file.begin(), middle}) + gzip({middle, file.end()}) + gzip({}),
      idx(kLabelsMagic, {3}, labels));
  expect_contents();
}

TEST_F(IdxTest, ReadsAStreamLargerThanItsBuffers) {
  std::mt19937 random(2);
  labels.assign(200, 1);
  pixels.resize(200 * 64 * 64);
  for (uint8_t& byte : pixels) byte = static_cast<uint8_t>(random());
  deck.model.image = {64, 64};
  set(gzip(idx(kGrayMagic, {200, 64, 64}, pixels)), gzip(idx(kLabelsMagic, {200}, labels)));
  expect_contents();
}

TEST_F(IdxTest, ReadsColourPictures) {
  deck.model.image = {2, 5};
  deck.model.channels = 2;
  set(idx(kColourMagic, {3, 2, 2, 5}, pixels), idx(kLabelsMagic, {3}, labels));
  expect_contents();
}

TEST_F(IdxTest, TheTestPartHasItsOwnKeys) {
  deck.data.test = deck.data.train;
  expect_fault(ExitCode::bad_input, {"data.test_labels is missing"}, Part::test);
  deck.data.test_labels = deck.data.train_labels;
  EXPECT_EQ(open_source(deck, Part::test)->size(), 3);
}

TEST_F(IdxTest, PicturesCanBeReadWithoutLabels) {
  const auto source = open_pictures(deck, "pictures", deck.data.train);
  EXPECT_EQ(source->size(), 3);
  Bytes picture(20);
  int32_t label = -1;
  source->read(2, picture, label);
  EXPECT_EQ(label, 0);
  EXPECT_TRUE(std::equal(picture.begin(), picture.end(), pixels.begin() + 40));
  try {
    open_pictures(deck, "pictures", deck.data.train_labels);
    ADD_FAILURE() << "opened";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::bad_data);
    EXPECT_NE(std::string(error.what()).find("pictures = "), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("labels"), std::string::npos) << error.what();
  }
}

TEST_F(IdxTest, MissingKey) {
  deck.data.train.clear();
  expect_fault(ExitCode::bad_input, {"data.train is missing"});
}

TEST_F(IdxTest, MissingFile) {
  deck.data.train = (folder.path() / "nowhere").string();
  expect_fault(ExitCode::bad_data, {"data.train = \"", "nowhere", "no such file"});
}

TEST_F(IdxTest, MissingPackagedFileNamesThePackage) {
  deck.data.train_labels = "/usr/share/datasets/fashion-mnist/there-is-no-such-file.gz";
  expect_fault(ExitCode::bad_data,
               {"data.train_labels", "no such file", "apt-get install dataset-fashion-mnist"});
}

TEST_F(IdxTest, DirectoryAsFile) {
  deck.data.train = folder.path().string();
  expect_fault(ExitCode::bad_data, {"data.train", folder.path().string(), "directory"});
}

TEST_F(IdxTest, NotARegularFile) {
  deck.data.train = "/dev/zero";
  expect_fault(ExitCode::bad_data, {"data.train", "not a regular file"});
}

TEST_F(IdxTest, TruncatedGzipAtEveryLength) {
  const Bytes whole = gzip(idx(kGrayMagic, {3, 4, 5}, pixels));
  for (size_t length = 2; length < whole.size(); ++length) {
    deck.data.train = folder.write("pictures", {whole.begin(), whole.begin() + length});
    expect_fault(ExitCode::bad_data, {"data.train = ", "truncated"});
  }
}

TEST_F(IdxTest, TruncatedLabelsAtEveryLength) {
  const Bytes whole = gzip(idx(kLabelsMagic, {3}, labels));
  for (size_t length = 2; length < whole.size(); ++length) {
    deck.data.train_labels = folder.write("labels", {whole.begin(), whole.begin() + length});
    expect_fault(ExitCode::bad_data, {"data.train_labels = ", "truncated"});
  }
}

TEST_F(IdxTest, DamagedGzipIsFoundByItsChecksum) {
  Bytes file = gzip(idx(kGrayMagic, {3, 4, 5}, pixels));
  file[file.size() - 8] ^= 1;  // the CRC itself
  deck.data.train = folder.write("pictures", file);
  expect_fault(ExitCode::bad_data, {"data.train = ", "damaged", "check"});
}

TEST_F(IdxTest, GarbageAfterTheGzipStream) {
  const Bytes file = gzip(idx(kGrayMagic, {3, 4, 5}, pixels));
  for (const Bytes& garbage : {Bytes{0}, Bytes{'x', 'y', 'z'}, Bytes(100, 0), Bytes{0x1f, 0x8b}}) {
    deck.data.train = folder.write("pictures", file + garbage);
    expect_fault(ExitCode::bad_data, {"data.train = ", "not gzip follows"});
  }
}

TEST_F(IdxTest, GarbageAfterTheData) {
  for (const bool packed : {false, true}) {
    const Bytes file = idx(kGrayMagic, {3, 4, 5}, pixels) + Bytes{7};
    deck.data.train = folder.write("pictures", packed ? gzip(file) : file);
    expect_fault(ExitCode::bad_data, {"data.train = ", "data follow the 60 bytes"});
  }
}

TEST_F(IdxTest, PlainFileCutShort) {
  const Bytes whole = idx(kGrayMagic, {3, 4, 5}, pixels);
  for (size_t length = 0; length < whole.size(); ++length) {
    deck.data.train = folder.write("pictures", {whole.begin(), whole.begin() + length});
    expect_fault(ExitCode::bad_data, {"data.train = "});
  }
}

TEST_F(IdxTest, PackedDataCutShort) {
  Bytes whole = idx(kGrayMagic, {3, 4, 5}, pixels);
  whole.pop_back();
  deck.data.train = folder.write("pictures", gzip(whole));
  expect_fault(ExitCode::bad_data, {"announces 60 bytes", "59 are there"});
}

TEST_F(IdxTest, AHeaderCannotClaimMoreThanTheFileCanHold) {
  for (const bool packed : {false, true}) {
    const Bytes file = idx(kColourMagic, {~0u, ~0u, ~0u, ~0u}, pixels);
    deck.data.train = folder.write("pictures", packed ? gzip(file) : file);
    expect_fault(ExitCode::bad_data, {"data.train = ", "claims more bytes"});
  }
}

TEST_F(IdxTest, LabelsGivenAsPictures) {
  std::swap(deck.data.train, deck.data.train_labels);
  deck.data.train_labels = deck.data.train;  // good labels, but no pictures
  expect_fault(ExitCode::bad_data, {"data.train = ", "0x00000801", "0x00000803", "file of labels",
                                    "are data.train and data.train_labels swapped?"});
}

TEST_F(IdxTest, PicturesGivenAsLabels) {
  deck.data.train_labels = deck.data.train;
  expect_fault(ExitCode::bad_data, {"data.train_labels = ", "0x00000803", "0x00000801",
                                    "file of pictures", "swapped?"});
}

TEST_F(IdxTest, SaysWhatAWrongFileLooksLike) {
  const auto rest = Bytes(64, 1);
  const std::vector<std::pair<Bytes, std::string>> cases = {
      {{0x89, 'P', 'N', 'G'}, "PNG"},
      {{0xff, 0xd8, 0xff, 0xe0}, "JPEG"},
      {{0x89, 'H', 'D', 'F'}, "HDF5"},
      {{'P', 'K', 3, 4}, "zip"},
      {{'B', 'Z', 'h', '9'}, "bzip2"},
      {{0xfd, '7', 'z', 'X'}, "xz"},
      {{0x28, 0xb5, 0x2f, 0xfd}, "zstd"},
      {{0x93, 'N', 'U', 'M'}, "NumPy"},
      {{'l', 'a', 'b', 'e'}, "text"},
      {{0x00, 0x00, 0x0d, 0x03}, "another element type"},
      {{0x00, 0x00, 0x08, 0x02}, "2 dims"},
      {{0x03, 0x08, 0x00, 0x00}, "little-endian"},
      {{0x01, 0x02, 0x03, 0x04}, "not an IDX file"},
  };
  for (const auto& [start, name] : cases) {
    deck.data.train = folder.write("pictures", start + rest);
    expect_fault(ExitCode::bad_data, {"data.train = ", "magic", name});
  }
  deck.data.train = folder.write("pictures", gzip(gzip(idx(kGrayMagic, {3, 4, 5}, pixels))));
  expect_fault(ExitCode::bad_data, {"gzip inside gzip"});
}

TEST_F(IdxTest, EmptyFile) {
  deck.data.train = folder.write("pictures", {});
  expect_fault(ExitCode::bad_data, {"data.train = ", "empty"});
  deck.data.train = folder.write("pictures", idx(kGrayMagic, {0, 4, 5}, {}));
  expect_fault(ExitCode::bad_data, {"data.train = ", "extent 0", "no data"});
}

TEST_F(IdxTest, SizesThatTheDeckDoesNotExpect) {
  deck.model.image = {5, 4};
  expect_fault(ExitCode::bad_data, {"data.train = ", "1 x 4 x 5", "model.image = [5, 4]",
                                    "set model.channels = 1 and model.image = [4, 5]"});
  for (const std::array<int64_t, 2> image : {std::array<int64_t, 2>{3, 5}, {4, 6}}) {
    deck.model.image = image;
    expect_fault(ExitCode::bad_data, {"data.train = ", "set model.channels = 1"});
  }
  deck.model.image = {4, 5};
  deck.model.channels = 3;
  expect_fault(ExitCode::bad_data, {"model.channels = 3", "set model.channels = 1"});
}

TEST_F(IdxTest, CountsThatDiffer) {
  labels = {0, 1};
  deck.data.train_labels = folder.write("labels", idx(kLabelsMagic, {2}, labels));
  expect_fault(ExitCode::bad_data,
               {"data.train = ", "3 pictures", "data.train_labels", "2 labels"});
}

TEST_F(IdxTest, LabelOutOfRangeIsGivenWithItsIndex) {
  deck.model.classes = 2;
  expect_fault(ExitCode::bad_data, {"data.train_labels = ", "label 2 at index 0",
                                    "model.classes = 2", "set model.classes = 3"});
}

TEST_F(IdxTest, FormatsOfLaterVersions) {
  for (const auto& [data_format, name] : {std::pair{DataFormat::folder, "folder"},
                                          {DataFormat::tar, "tar"},
                                          {DataFormat::hdf5, "hdf5"}}) {
    deck.data.format = data_format;
    expect_fault(ExitCode::bad_input,
                 {"data.format = \"" + std::string(name) + "\"", "\"idx\" and \"synthetic\""});
  }
}

TEST(FashionMnist, IsReadAsItsPackageShipsIt) {
  const std::string folder = "/usr/share/datasets/fashion-mnist/";
  if (!std::filesystem::exists(folder)) GTEST_SKIP() << "dataset-fashion-mnist is not installed";
  Deck deck;
  deck.data.format = DataFormat::idx;
  deck.model.image = {28, 28};
  deck.model.channels = 1;
  deck.model.classes = 10;
  deck.data.test = folder + "t10k-images-idx3-ubyte.gz";
  deck.data.test_labels = folder + "t10k-labels-idx1-ubyte.gz";
  const auto source = open_source(deck, Part::test);
  ASSERT_EQ(source->size(), 10000);
  std::vector<int> of_class(10);
  for (int64_t i = 0; i < source->size(); ++i) {
    int32_t label = -1;
    source->read(i, {}, label);
    ++of_class.at(static_cast<size_t>(label));
  }
  EXPECT_EQ(of_class, std::vector<int>(10, 1000));
}

}  // namespace
}  // namespace voltapile
