// The twin of jpeg.cpp: linked when the build has no libjpeg.
#include "voltapile/base/error.hpp"

#include "picture_file.hpp"

namespace voltapile {

Picture decode_jpeg(std::span<const std::byte>, const std::string& file) {
  throw Error(ExitCode::bad_input, format("{}: this build reads no JPEG pictures: install libjpeg "
                                          "(libjpeg-dev) and build again with -Djpeg=enabled",
                                          file));
}

}  // namespace voltapile
