#include "shard_faults.hpp"

#include "voltapile/checkpoint/durable.hpp"

namespace voltapile {

std::vector<std::string> shard_faults(const std::filesystem::path& checkpoint, const Index&,
                                      const ShardEntry& shard) {
  const std::string fault = size_fault(checkpoint, shard);
  if (!fault.empty()) return {fault};
  const std::filesystem::path path = checkpoint / shard.file;
  try {
    const Digest digest = digest_file(path);
    if (digest.hex == shard.digest) return {};
    return {
        format("{}: damaged: digest {} instead of {}", path.string(), digest.hex, shard.digest)};
  } catch (const Error& error) { return {error.what()}; }
}

}  // namespace voltapile
