// Private to data: a folder of picture files, as pictures without labels.
#pragma once
#include <memory>
#include <string>

#include "voltapile/data/data.hpp"

namespace voltapile {

// All files below it whose names end in .png, .jpg or .jpeg, in the order of their names; hidden
// ones are left out. They are read when they are asked for. Error(bad_data): there are none, or
// the folder cannot be read; Error(bad_input): a model of neither 1 nor 3 channels.
std::shared_ptr<const Source> open_picture_folder(const Deck& deck, const std::string& key,
                                                  const std::string& path);

}  // namespace voltapile
