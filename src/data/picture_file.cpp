#include "picture_file.hpp"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <fstream>

#include "voltapile/base/bicubic.hpp"
#include "voltapile/base/error.hpp"

namespace voltapile {
namespace {

// Of `wanted` pixels in the middle of `there` ones that are scaled by `scale`.
std::vector<Taps> taps(int64_t there, int64_t wanted, double scale) {
  std::vector<Taps> all;
  for (int64_t i = 0; i < wanted; ++i) {
    const double from_middle = static_cast<double>(i) + 0.5 - static_cast<double>(wanted) / 2;
    all.push_back(bicubic_taps(from_middle / scale + static_cast<double>(there) / 2,
                               std::max(1.0, 1 / scale), there));
  }
  return all;
}

uint8_t to_byte(float value) {
  return static_cast<uint8_t>(std::lround(std::clamp(value, 0.f, 255.f)));
}

}  // namespace

Picture read_picture(const std::filesystem::path& file) {
  std::ifstream in(file, std::ios::binary | std::ios::ate);
  const auto length = in.is_open() ? static_cast<std::streamoff>(in.tellg()) : -1;
  std::vector<char> bytes(static_cast<size_t>(std::max<std::streamoff>(length, 0)));
  if (length < 0 || !in.seekg(0) || !in.read(bytes.data(), length))
    throw Error(ExitCode::bad_data,
                format("{}: this picture cannot be read: {}", file.string(), std::strerror(errno)));
  const std::string start(bytes.data(), std::min<size_t>(bytes.size(), 8));
  const auto all = std::as_bytes(std::span(bytes));
  if (start == "\x89PNG\r\n\x1a\n") return decode_png(all, file.string());
  if (start.starts_with("\xff\xd8\xff")) return decode_jpeg(all, file.string());
  throw Error(ExitCode::bad_data,
              format("{}: this is neither a PNG nor a JPEG picture", file.string()));
}

void fit_picture(const Picture& picture, int64_t channels, int64_t height, int64_t width,
                 std::span<uint8_t> into) {
  VP_CHECK(channels == 1 || channels == 3, "a picture of {} channels", channels);
  VP_CHECK(static_cast<int64_t>(into.size()) == channels * height * width,
           "{} bytes for {} x {} x {}", into.size(), channels, height, width);
  const double scale = std::max(static_cast<double>(height) / static_cast<double>(picture.height),
                                static_cast<double>(width) / static_cast<double>(picture.width));
  const std::vector<Taps> across = taps(picture.width, width, scale),
                          down = taps(picture.height, height, scale);
  std::vector<float> narrow(static_cast<size_t>(picture.height * width * 3));  // (.., width, 3)
  for (int64_t y = 0; y < picture.height; ++y) {
    const uint8_t* const row = picture.pixels.data() + y * picture.width * 3;
    float* to = narrow.data() + y * width * 3;
    for (const Taps& tap : across)
      for (int64_t c = 0; c < 3; ++c, ++to)
        for (size_t k = 0; k < tap.weights.size(); ++k)
          *to += static_cast<float>(tap.weights[k]) *
                 static_cast<float>(row[(tap.first + static_cast<int64_t>(k)) * 3 + c]);
  }
  std::vector<float> line(static_cast<size_t>(width * 3));
  for (int64_t y = 0; y < height; ++y) {
    const Taps& tap = down[static_cast<size_t>(y)];
    std::fill(line.begin(), line.end(), 0.f);
    for (size_t k = 0; k < tap.weights.size(); ++k) {
      const auto weight = static_cast<float>(tap.weights[k]);
      const float* const from = narrow.data() + (tap.first + static_cast<int64_t>(k)) * width * 3;
      for (size_t x = 0; x < line.size(); ++x) line[x] += weight * from[x];
    }
    for (int64_t x = 0; x < width; ++x) {
      const float* const rgb = line.data() + x * 3;
      uint8_t* const to = into.data() + y * width + x;
      if (channels == 1) *to = to_byte((299 * rgb[0] + 587 * rgb[1] + 114 * rgb[2]) / 1000);
      else
        for (int64_t c = 0; c < 3; ++c) to[c * height * width] = to_byte(rgb[c]);
    }
  }
}

}  // namespace voltapile
