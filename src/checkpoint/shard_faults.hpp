// What is wrong with the bytes of one shard.
#pragma once
#include <filesystem>
#include <string>
#include <vector>

#include "index.hpp"

namespace voltapile {

// Reads the whole file. A line each; empty = it is what was saved.
std::vector<std::string> shard_faults(const std::filesystem::path& checkpoint, const Index& index,
                                      const ShardEntry& shard);

}  // namespace voltapile
