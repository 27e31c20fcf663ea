// Linked when the build has libjpeg; its twin is no_jpeg.cpp.
#include <csetjmp>
#include <cstdio>

#include <jerror.h>
#include <jpeglib.h>

#include "voltapile/base/error.hpp"

#include "picture_file.hpp"

namespace voltapile {
namespace {

// libjpeg's first member is what it knows of.
struct Faults {
  jpeg_error_mgr common;
  std::jmp_buf back;
  char text[JMSG_LENGTH_MAX];
};

[[noreturn]] void leave(j_common_ptr about) {
  auto* const faults = reinterpret_cast<Faults*>(about->err);
  about->err->format_message(about, faults->text);
  std::longjmp(faults->back, 1);
}

// A file that is cut short is a warning to libjpeg, which makes the rest up.
void weigh(j_common_ptr about, int level) {
  const int code = about->err->msg_code;
  if (level < 0 && (code == JWRN_JPEG_EOF || code == JWRN_HIT_MARKER)) leave(about);
}

// Begins or goes on: calls `step` and says whether it came to its end. Nothing in it has a
// destructor, over which a jump must not lead.
template <class Step>
bool came_through(Faults& faults, const Step& step) {
  if (setjmp(faults.back) != 0) return false;
  step();
  return true;
}

// Rows of inks to rows of colours, as Pillow has it. Such files hold what each ink leaves of the
// light (Adobe's way), so a colour is what its ink and black leave together.
void show_inks(std::span<const uint8_t> inks, uint8_t* colours) {
  for (size_t pixel = 0; pixel < inks.size() / 4; ++pixel)
    for (size_t c = 0; c < 3; ++c)
      colours[3 * pixel + c] =
          static_cast<uint8_t>((inks[4 * pixel + c] * inks[4 * pixel + 3] + 127) / 255);
}

}  // namespace

Picture decode_jpeg(std::span<const std::byte> bytes, const std::string& file) {
  jpeg_decompress_struct jpeg{};
  Faults faults{};
  jpeg.err = jpeg_std_error(&faults.common);
  faults.common.error_exit = leave;
  faults.common.emit_message = weigh;
  const auto refuse = [&](const std::string& why) {
    jpeg_destroy_decompress(&jpeg);
    throw Error(ExitCode::bad_data, format("{}: this JPEG picture is damaged: {}", file, why));
  };
  bool inks = false;  // cyan, magenta, yellow and black in place of colours
  if (!came_through(faults, [&] {
        jpeg_create_decompress(&jpeg);
        jpeg_mem_src(&jpeg, reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size());
        jpeg_read_header(&jpeg, TRUE);
        inks = jpeg.num_components == 4;
        jpeg.out_color_space = inks ? JCS_CMYK : JCS_RGB;
      }))
    refuse(faults.text);
  Picture picture{.height = jpeg.image_height, .width = jpeg.image_width};
  if (picture.height * picture.width > kMostPixels)
    refuse(format("it claims {} x {} pixels", picture.width, picture.height));
  picture.pixels.resize(static_cast<size_t>(picture.height * picture.width * 3));
  std::vector<uint8_t> ink_row(inks ? static_cast<size_t>(picture.width) * 4 : 0);
  if (!came_through(faults, [&] {
        jpeg_start_decompress(&jpeg);
        while (jpeg.output_scanline < jpeg.output_height) {
          uint8_t* const colours =
              picture.pixels.data() + size_t{jpeg.output_scanline} * jpeg.image_width * 3;
          JSAMPROW row = inks ? ink_row.data() : colours;
          jpeg_read_scanlines(&jpeg, &row, 1);
          if (inks) show_inks(ink_row, colours);
        }
        jpeg_finish_decompress(&jpeg);
      }))
    refuse(faults.text);
  jpeg_destroy_decompress(&jpeg);
  return picture;
}

}  // namespace voltapile
