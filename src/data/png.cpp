// Linked when the build has libpng; its twin is no_png.cpp.
#include <algorithm>

#include <png.h>

#include "voltapile/base/error.hpp"

#include "picture_file.hpp"

namespace voltapile {

Picture decode_png(std::span<const std::byte> bytes, const std::string& file) {
  png_image image{};
  image.version = PNG_IMAGE_VERSION;
  const auto refuse = [&](const std::string& why) {
    png_image_free(&image);
    throw Error(ExitCode::bad_data, format("{}: this PNG picture is damaged: {}", file, why));
  };
  if (png_image_begin_read_from_memory(&image, bytes.data(), bytes.size()) == 0)
    refuse(image.message);
  const int64_t pixels = int64_t{image.width} * image.height;
  if (pixels > kMostPixels) refuse(format("it claims {} x {} pixels", image.width, image.height));
  // Without a channel for it, libpng would blend transparency with a background.
  image.format = PNG_FORMAT_RGBA;
  image.flags |= PNG_IMAGE_FLAG_16BIT_sRGB;
  Picture picture{.height = image.height, .width = image.width};
  std::vector<uint8_t> rgba(static_cast<size_t>(pixels * 4));
  if (png_image_finish_read(&image, nullptr, rgba.data(), 0, nullptr) == 0) refuse(image.message);
  picture.pixels.resize(static_cast<size_t>(pixels * 3));
  for (size_t i = 0; i < static_cast<size_t>(pixels); ++i)
    std::copy_n(rgba.begin() + static_cast<int64_t>(i * 4), 3,
                picture.pixels.begin() + static_cast<int64_t>(i * 3));
  return picture;
}

}  // namespace voltapile
