#include "idx.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <new>
#include <optional>
#include <string_view>
#include <utility>

#include "voltapile/base/error.hpp"
#include "voltapile/base/units.hpp"

#include "byte_reader.hpp"

namespace voltapile {
namespace {

constexpr uint32_t kLabels = 0x00000801, kGrayPictures = 0x00000803, kPictures = 0x00000804;

class IdxSource final : public Source {
 public:
  IdxSource(std::string origin, int64_t picture_bytes, std::unique_ptr<uint8_t[]> pictures,
            std::vector<uint8_t> labels)
      : origin_(std::move(origin)),
        picture_bytes_(static_cast<size_t>(picture_bytes)),
        pictures_(std::move(pictures)),
        labels_(std::move(labels)) {}

  int64_t size() const override { return static_cast<int64_t>(labels_.size()); }
  std::string describe() const override { return origin_; }

  void read(int64_t index, std::span<uint8_t> picture, int32_t& label) const override {
    VP_CHECK(0 <= index && index < size(), "picture {} of {}", index, size());
    const auto at = static_cast<size_t>(index);
    if (!picture.empty()) {
      VP_CHECK(picture.size() == picture_bytes_, "a picture has {} bytes, not {}", picture_bytes_,
               picture.size());
      std::memcpy(picture.data(), pictures_.get() + at * picture_bytes_, picture_bytes_);
    }
    label = labels_[at];
  }

 private:
  std::string origin_;
  size_t picture_bytes_;
  std::unique_ptr<uint8_t[]> pictures_;  // (N, C, H, W)
  std::vector<uint8_t> labels_;          // (N)
};

uint32_t big_endian(const uint8_t* at) {
  return uint32_t{at[0]} << 24 | uint32_t{at[1]} << 16 | uint32_t{at[2]} << 8 | uint32_t{at[3]};
}

// What a file is that starts with these bytes; for the message about a wrong magic.
std::string looks_like(uint32_t magic) {
  const uint32_t type = magic >> 8, dims = magic & 0xff;
  if (magic == kLabels) return "it is an IDX file of labels";
  if (magic == kGrayPictures || magic == kPictures) return "it is an IDX file of pictures";
  if (type == 0x08)
    return format("it is an IDX file of bytes with {} dims, and pictures have 3 or 4", dims);
  if (type == 0x09 || (0x0b <= type && type <= 0x0e))
    return "it is an IDX file of another element type; only unsigned bytes are read";
  if ((magic & 0xffff) == 0 && (magic >> 16 & 0xff) == 0x08)
    return "its header is little-endian, and IDX is big-endian: write it again with '>u4'";
  struct Known {
    uint32_t mask, value;
    const char* what;
  };
  constexpr std::array kKnown = {
      Known{0xffff0000, 0x1f8b0000, "it is gzip inside gzip: unpack it once"},
      Known{0xffffffff, 0x89504e47, "it is a PNG picture, not IDX"},
      Known{0xffffff00, 0xffd8ff00, "it is a JPEG picture, not IDX"},
      Known{0xffffffff, 0x89484446, "it is an HDF5 file, not IDX"},
      Known{0xffff0000, 0x504b0000, "it is a zip archive, not IDX"},
      Known{0xffffff00, 0x425a6800, "it is packed by bzip2; only gzip is read"},
      Known{0xffffffff, 0xfd377a58, "it is packed by xz; only gzip is read"},
      Known{0xffffffff, 0x28b52ffd, "it is packed by zstd; only gzip is read"},
      Known{0xffffffff, 0x934e554d, "it is a NumPy file, not IDX"},
  };
  for (const Known& known : kKnown)
    if ((magic & known.mask) == known.value) return known.what;
  bool text = true;
  for (int shift = 0; shift < 32; shift += 8) {
    const uint32_t byte = magic >> shift & 0xff;
    text = text && ((0x20 <= byte && byte < 0x7f) || byte == '\n' || byte == '\r' || byte == '\t');
  }
  return text ? "it looks like text, not IDX" : "it is not an IDX file";
}

struct Header {
  uint32_t magic = 0;
  std::vector<int64_t> extents;
  int64_t payload_bytes = 0;
};

enum class Content { pictures, labels };

Header read_header(ByteReader& file, Content content, const IdxExpectation& expected) {
  const auto read_exactly = [&](std::span<uint8_t> into) {
    const size_t got = file.read(into);
    if (got < into.size())
      file.fail(got == 0 ? "the file is empty" : "the file ends inside its IDX header");
  };
  std::array<uint8_t, 4> word{};
  read_exactly(word);
  Header header;
  header.magic = big_endian(word.data());
  const bool has_labels = header.magic == kLabels;
  const bool has_pictures = header.magic == kGrayPictures || header.magic == kPictures;
  if (content == Content::pictures ? !has_pictures : !has_labels) {
    const bool swapped = content == Content::pictures ? has_labels : has_pictures;
    file.fail(
        format("the magic number is 0x{:08x}, expected {}: {}{}", header.magic,
               content == Content::pictures ? "0x00000803 or 0x00000804 (pictures)"
                                            : "0x00000801 (labels)",
               looks_like(header.magic),
               swapped && !expected.labels_path.empty()
                   ? format("; are {} and {} swapped?", expected.pictures_key, expected.labels_key)
                   : ""));
  }
  // Compared by division: the product of four 32-bit extents may not fit into 64 bits.
  uint64_t bytes = 1;
  for (uint32_t dim = 0; dim < (header.magic & 0xff); ++dim) {
    read_exactly(word);
    const uint32_t extent = big_endian(word.data());
    if (extent == 0) file.fail(format("extent {} of the IDX header is 0: there is no data", dim));
    if (bytes > file.most_bytes() / extent)
      file.fail(
          "its IDX header claims more bytes than the file can hold: it is cut short or "
          "damaged; fetch the file again");
    bytes *= extent;
    header.extents.push_back(extent);
  }
  header.payload_bytes = static_cast<int64_t>(bytes);
  return header;
}

void read_payload(ByteReader& file, std::span<uint8_t> into) {
  const size_t got = file.read(into);
  if (got < into.size())
    file.fail(format(
        "the file ends early: its IDX header announces {} bytes of data, and {} are "
        "there; fetch the file again",
        show_grouped(static_cast<int64_t>(into.size())), show_grouped(static_cast<int64_t>(got))));
  // Also makes a gzip stream check its CRC.
  std::array<uint8_t, 1> beyond{};
  if (file.read(beyond) != 0)
    file.fail(
        format("data follow the {} bytes that its IDX header announces; is the header that "
               "of another file?",
               show_grouped(static_cast<int64_t>(into.size()))));
}

std::vector<uint8_t> read_labels(const IdxExpectation& expected) {
  ByteReader file(expected.labels_key, expected.labels_path);
  const Header header = read_header(file, Content::labels, expected);
  std::vector<uint8_t> labels(static_cast<size_t>(header.payload_bytes));
  read_payload(file, labels);
  const auto bad = std::find_if(labels.begin(), labels.end(),
                                [&](uint8_t label) { return label >= expected.classes; });
  if (bad != labels.end()) {
    const int largest = *std::max_element(labels.begin(), labels.end());
    file.fail(
        format("label {} at index {} is out of range: model.classes = {} allows 0 to {}; the "
               "largest label in the file is {}, so set model.classes = {} or more",
               int{*bad}, bad - labels.begin(), expected.classes, expected.classes - 1, largest,
               largest + 1));
  }
  return labels;
}

std::string image_text(int64_t height, int64_t width) {
  return height == width ? format("{}", height) : format("[{}, {}]", height, width);
}

struct Pictures {
  std::unique_ptr<uint8_t[]> bytes;
  size_t count = 0;
};

Pictures read_pictures(const IdxExpectation& expected, std::optional<size_t> labels) {
  ByteReader file(expected.pictures_key, expected.pictures_path);
  const Header header = read_header(file, Content::pictures, expected);
  const bool gray = header.magic == kGrayPictures;
  const int64_t channels = gray ? 1 : header.extents[1];
  const int64_t height = header.extents[gray ? 1 : 2], width = header.extents[gray ? 2 : 3];
  if (channels != expected.channels || height != expected.height || width != expected.width)
    file.fail(
        format("its pictures are {} x {} x {} (channels, height, width), and the deck says "
               "model.channels = {}, model.image = {}; set model.channels = {} and "
               "model.image = {}",
               channels, height, width, expected.channels,
               image_text(expected.height, expected.width), channels, image_text(height, width)));
  if (labels && static_cast<uint64_t>(header.extents[0]) != *labels)
    file.fail(
        format("it holds {} pictures, and {} = \"{}\" holds {} labels; the two files belong "
               "to different sets",
               show_grouped(header.extents[0]), expected.labels_key, expected.labels_path,
               show_grouped(static_cast<int64_t>(*labels))));
  const auto bytes = static_cast<size_t>(header.payload_bytes);
  std::unique_ptr<uint8_t[]> pictures(new (std::nothrow) uint8_t[bytes]);
  if (!pictures)
    file.fail(format("its {} of pictures do not fit into this host's memory",
                     show_bytes(static_cast<double>(bytes))));
  read_payload(file, std::span(pictures.get(), bytes));
  return {std::move(pictures), static_cast<size_t>(header.extents[0])};
}

}  // namespace

std::shared_ptr<const Source> open_idx(const IdxExpectation& expected) {
  // Where both are missing, the pictures are what the deck names.
  const ByteReader opens(expected.pictures_key, expected.pictures_path);
  const bool labelled = !expected.labels_path.empty();
  std::vector<uint8_t> labels;
  if (labelled) labels = read_labels(expected);
  Pictures pictures =
      read_pictures(expected, labelled ? std::optional(labels.size()) : std::nullopt);
  labels.resize(pictures.count);
  std::string origin = format("{} pictures of {} x {} x {} from {}",
                              show_grouped(static_cast<int64_t>(labels.size())), expected.channels,
                              expected.height, expected.width, expected.pictures_path);
  return std::make_shared<IdxSource>(std::move(origin),
                                     expected.channels * expected.height * expected.width,
                                     std::move(pictures.bytes), std::move(labels));
}

}  // namespace voltapile
