// Private to data: pictures that are files, and what becomes of one on its way into a model.
#pragma once
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

namespace voltapile {

struct Picture {
  int64_t height = 0, width = 0;
  std::vector<uint8_t> pixels;  // (height, width, 3): red, green, blue; grey ones are all alike
};

// At most so many pixels are read: a damaged header may claim anything.
inline constexpr int64_t kMostPixels = int64_t{1} << 28;

// A PNG or JPEG file, told by its first bytes. Transparency is left out, and so is the orientation
// that a camera noted. Error(bad_data) names the file: it cannot be read, is of another kind,
// damaged, or cut short; Error(bad_input) where the build lacks the library.
Picture read_picture(const std::filesystem::path& file);

// Of a file's bytes; `file` is for messages.
Picture decode_png(std::span<const std::byte> bytes, const std::string& file);
Picture decode_jpeg(std::span<const std::byte> bytes, const std::string& file);

// The middle of the picture as (channels, height, width), after it has been scaled so that it just
// covers that: by Keys' cubic filter (a = -0.5), widened where pixels become fewer, as Pillow's and
// timm's bicubic is. channels: 3, or 1: brightness, (299 red + 587 green + 114 blue) / 1000. A
// picture of that size stays as it is.
void fit_picture(const Picture& picture, int64_t channels, int64_t height, int64_t width,
                 std::span<uint8_t> into);

}  // namespace voltapile
