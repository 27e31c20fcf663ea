// What is wrong with the bytes of one shard.
#pragma once
#include <filesystem>
#include <string>
#include <vector>

#include "index.hpp"

namespace voltapile {

// Reads the whole file of the index's shard of that place in the list; empty = it is what was
// saved. Else one text that names the file and what happened to it, as far as bytes can tell: each
// range of bytes that are not those that were saved, and its tensor.
std::string shard_fault(const std::filesystem::path& checkpoint, const Index& index, size_t shard);

// Reads each dataset of a sound shard by its name, as any reader of HDF5 does, and compares the
// values' digests; a line for each that differs. Counts the datasets into `read`.
std::vector<std::string> dataset_faults(const std::filesystem::path& checkpoint, const Index& index,
                                        size_t shard, int64_t& read);

}  // namespace voltapile
