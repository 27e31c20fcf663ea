// The twin of png.cpp: linked when the build has no libpng.
#include "voltapile/base/error.hpp"

#include "picture_file.hpp"

namespace voltapile {

Picture decode_png(std::span<const std::byte>, const std::string& file) {
  throw Error(ExitCode::bad_input, format("{}: this build reads no PNG pictures: install libpng "
                                          "(libpng-dev) and build again with -Dpng=enabled",
                                          file));
}

}  // namespace voltapile
