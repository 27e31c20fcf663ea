// Picture files: what the two decoders give, what is refused, and how a picture is fitted.
#include <cstdio>
#include <cstdlib>
#include <fstream>

#include <gtest/gtest.h>
#include <jpeglib.h>
#include <png.h>

#include "voltapile/base/error.hpp"

#include "picture_file.hpp"

namespace voltapile {
namespace {

namespace fs = std::filesystem;

class PictureFile : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "vp_picture_XXXXXX").string();
    folder_ = mkdtemp(pattern.data());
  }
  void TearDown() override { fs::remove_all(folder_); }

  fs::path write(const std::string& name, const std::vector<uint8_t>& bytes) const {
    std::ofstream(folder_ / name, std::ios::binary)
        .write(reinterpret_cast<const char*>(bytes.data()),
               static_cast<std::streamsize>(bytes.size()));
    return folder_ / name;
  }
  fs::path folder_;
};

// A ramp in each colour, smooth enough for JPEG.
Picture ramps(int64_t height, int64_t width) {
  Picture picture{.height = height, .width = width};
  for (int64_t y = 0; y < height; ++y)
    for (int64_t x = 0; x < width; ++x)
      for (const int64_t value : {x * 255 / (width - 1), y * 255 / (height - 1), int64_t{77}})
        picture.pixels.push_back(static_cast<uint8_t>(value));
  return picture;
}

std::vector<uint8_t> as_png(const void* pixels, int64_t height, int64_t width, png_uint_32 kind) {
  png_image image{};
  image.version = PNG_IMAGE_VERSION;
  image.height = static_cast<png_uint_32>(height);
  image.width = static_cast<png_uint_32>(width);
  image.format = kind;
  png_alloc_size_t size = 0;
  png_image_write_get_memory_size(image, size, 0, pixels, 0, nullptr);
  std::vector<uint8_t> bytes(size);
  EXPECT_NE(png_image_write_to_memory(&image, bytes.data(), &size, 0, pixels, 0, nullptr), 0);
  bytes.resize(size);
  return bytes;
}

std::vector<uint8_t> as_jpeg(const std::vector<uint8_t>& pixels, int64_t height, int64_t width,
                             J_COLOR_SPACE space) {
  jpeg_compress_struct jpeg{};
  jpeg_error_mgr faults{};
  jpeg.err = jpeg_std_error(&faults);
  jpeg_create_compress(&jpeg);
  unsigned char* memory = nullptr;
  unsigned long size = 0;
  jpeg_mem_dest(&jpeg, &memory, &size);
  jpeg.image_height = static_cast<JDIMENSION>(height);
  jpeg.image_width = static_cast<JDIMENSION>(width);
  jpeg.input_components = space == JCS_RGB ? 3 : space == JCS_CMYK ? 4 : 1;
  jpeg.in_color_space = space;
  jpeg_set_defaults(&jpeg);
  jpeg_set_quality(&jpeg, 98, TRUE);
  jpeg_start_compress(&jpeg, TRUE);
  const size_t row_bytes = static_cast<size_t>(width * jpeg.input_components);
  while (jpeg.next_scanline < jpeg.image_height) {
    auto* row = const_cast<uint8_t*>(pixels.data() + jpeg.next_scanline * row_bytes);
    jpeg_write_scanlines(&jpeg, &row, 1);
  }
  jpeg_finish_compress(&jpeg);
  jpeg_destroy_compress(&jpeg);
  std::vector<uint8_t> bytes(memory, memory + size);
  std::free(memory);
  return bytes;
}

std::string fault_of(const fs::path& file) {
  try {
    read_picture(file);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::bad_data);
    EXPECT_NE(std::string(error.what()).find(file.string()), std::string::npos) << error.what();
    return error.what();
  }
  ADD_FAILURE() << file << " was read";
  return "";
}

TEST_F(PictureFile, PngGivesItsPixels) {
  const Picture wanted = ramps(5, 7);
  const Picture found =
      read_picture(write("a", as_png(wanted.pixels.data(), 5, 7, PNG_FORMAT_RGB)));
  EXPECT_EQ(found.height, 5);
  EXPECT_EQ(found.width, 7);
  EXPECT_EQ(found.pixels, wanted.pixels);
  const std::vector<uint8_t> grey = {0, 9, 128, 255, 3, 200};
  const Picture three = read_picture(write("b", as_png(grey.data(), 2, 3, PNG_FORMAT_GRAY)));
  for (size_t i = 0; i < grey.size(); ++i)
    for (size_t c = 0; c < 3; ++c) EXPECT_EQ(three.pixels[3 * i + c], grey[i]);
  // Transparency is left out, not blended.
  const std::vector<uint8_t> clear = {10, 20, 30, 1, 40, 50, 60, 255};
  EXPECT_EQ(read_picture(write("c", as_png(clear.data(), 1, 2, PNG_FORMAT_RGBA))).pixels,
            (std::vector<uint8_t>{10, 20, 30, 40, 50, 60}));
}

TEST_F(PictureFile, JpegGivesItsPixelsNearly) {
  const Picture wanted = ramps(40, 56);
  const Picture found = read_picture(write("a", as_jpeg(wanted.pixels, 40, 56, JCS_RGB)));
  ASSERT_EQ(found.height, 40);
  ASSERT_EQ(found.width, 56);
  ASSERT_EQ(found.pixels.size(), wanted.pixels.size());
  for (size_t i = 0; i < wanted.pixels.size(); ++i)
    ASSERT_NEAR(found.pixels[i], wanted.pixels[i], 6) << i;
  const std::vector<uint8_t> grey(16 * 16, 99);
  const Picture three = read_picture(write("b", as_jpeg(grey, 16, 16, JCS_GRAYSCALE)));
  ASSERT_EQ(three.pixels.size(), 3 * grey.size());
  for (const uint8_t value : three.pixels) ASSERT_NEAR(value, 99, 1);
}

// A colour is what its ink and black leave of the light, as Pillow's convert("RGB") of such a file.
TEST_F(PictureFile, InksOfAJpegBecomeColours) {
  std::vector<uint8_t> inks;
  for (int pixel = 0; pixel < 64; ++pixel) inks.insert(inks.end(), {200, 100, 0, 153});
  const Picture found = read_picture(write("inks", as_jpeg(inks, 8, 8, JCS_CMYK)));
  ASSERT_EQ(found.pixels.size(), size_t{3 * 64});
  for (size_t i = 0; i < found.pixels.size(); i += 3) {
    ASSERT_NEAR(found.pixels[i], 120, 2);
    ASSERT_NEAR(found.pixels[i + 1], 60, 2);
    ASSERT_NEAR(found.pixels[i + 2], 0, 2);
  }
}

TEST_F(PictureFile, WhatIsDamagedIsRefusedAndNamed) {
  const Picture whole = ramps(64, 64);
  const std::vector<uint8_t> png = as_png(whole.pixels.data(), 64, 64, PNG_FORMAT_RGB),
                             jpeg = as_jpeg(whole.pixels, 64, 64, JCS_RGB);
  for (const auto* bytes : {&png, &jpeg})
    for (const size_t left : {size_t{20}, bytes->size() / 2, bytes->size() - 20})
      fault_of(write("cut", {bytes->begin(), bytes->begin() + static_cast<int64_t>(left)}));
  std::vector<uint8_t> flipped = png;
  flipped[png.size() / 2] ^= 1;  // PNG has checksums
  EXPECT_NE(fault_of(write("flipped", flipped)).find("damaged"), std::string::npos);
  EXPECT_NE(fault_of(write("text", {'h', 'e', 'l', 'l', 'o'})).find("neither"), std::string::npos);
  EXPECT_NE(fault_of(write("empty", {})).find("neither"), std::string::npos);
  EXPECT_NE(fault_of(folder_ / "nothing").find("No such file"), std::string::npos);
  std::vector<uint8_t> huge = png;  // width and height of the header, and its checksum, are wrong
  for (size_t i = 16; i < 24; ++i) huge[i] = 0x70;
  fault_of(write("huge", huge));
}

std::vector<uint8_t> fitted(const Picture& picture, int64_t channels, int64_t height,
                            int64_t width) {
  std::vector<uint8_t> into(static_cast<size_t>(channels * height * width));
  fit_picture(picture, channels, height, width, into);
  return into;
}

TEST(FitPicture, KeepsWhatFits) {
  const Picture picture = ramps(6, 9);
  const std::vector<uint8_t> planes = fitted(picture, 3, 6, 9);
  for (size_t c = 0; c < 3; ++c)
    for (size_t i = 0; i < 54; ++i) EXPECT_EQ(planes[54 * c + i], picture.pixels[3 * i + c]);
}

TEST(FitPicture, TakesTheMiddle) {
  const Picture picture = ramps(6, 20);
  const std::vector<uint8_t> planes = fitted(picture, 3, 6, 6);
  for (size_t y = 0; y < 6; ++y)
    for (size_t x = 0; x < 6; ++x)
      EXPECT_EQ(planes[6 * y + x], picture.pixels[3 * (20 * y + x + 7)]);
}

TEST(FitPicture, ScalesARampToARamp) {
  for (const int64_t wanted : {16, 24, 100}) {
    const std::vector<uint8_t> planes = fitted(ramps(48, 48), 3, wanted, wanted);
    for (int64_t x = 2; x < wanted - 2; ++x) {
      const double there = (static_cast<double>(x) + 0.5) * 48 / static_cast<double>(wanted) - 0.5;
      if (there < 5 || there > 42) continue;  // where edges bend it
      // The ramp itself is rounded down.
      EXPECT_NEAR(planes[static_cast<size_t>(wanted * 7 + x)], there * 255 / 47 - 0.5, 1.1);
    }
    EXPECT_EQ(planes[static_cast<size_t>(2 * wanted * wanted + 5)], 77);
  }
}

// Pillow 13.0: Image.fromarray(...).resize((4, 4), Image.BICUBIC) of these 8 x 8 grey values.
TEST(FitPicture, IsPillowsBicubic) {
  Picture picture{.height = 8, .width = 8};
  for (int i = 0; i < 64; ++i)
    picture.pixels.insert(picture.pixels.end(), 3, static_cast<uint8_t>(i * i * 37 % 251));
  const std::vector<int> wanted = {109, 148, 136, 114, 162, 137, 146, 160,
                                   180, 97,  130, 177, 181, 136, 116, 151};
  const std::vector<uint8_t> found = fitted(picture, 1, 4, 4);
  for (size_t i = 0; i < wanted.size(); ++i) EXPECT_NEAR(found[i], wanted[i], 1) << i;
}

TEST(FitPicture, BrightnessIsWeighed) {
  const Picture red{.height = 1, .width = 1, .pixels = {200, 0, 0}};
  EXPECT_EQ(fitted(red, 1, 2, 2), std::vector<uint8_t>(4, 60));
}

}  // namespace
}  // namespace voltapile
