// Any bytes are weights that fit the deck or a clean refusal. Each input is taken twice: as it is,
// and with the length that its header has, so that mutations of the header get past it.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <string>

#include <sys/mman.h>
#include <unistd.h>

#include "voltapile/base/error.hpp"
#include "voltapile/checkpoint/interchange.hpp"
#include "voltapile/deck/parse.hpp"

namespace {

constexpr size_t kLengthBytes = 8;

// Thrown where the run folder would be made: the file was read and fits.
struct Accepted {};

[[noreturn]] void fail(const std::string& why) {
  std::cerr << why << "\n";
  std::abort();
}

const voltapile::Deck& deck() {
  static const voltapile::Deck deck = voltapile::parse_deck(R"(
[run]
name = "fuzz"
steps = 1
[model]
image = 4
channels = 1
patch = 2
dim = 4
depth = 1
heads = 1
mlp = 2
classes = 2
pool = "token"
[batch]
global = 1
micro = 1
[data]
format = "synthetic"
mean = [0.5]
std = [0.5]
)",
                                                            "/decks/fuzz.toml");
  return deck;
}

void import_bytes(const std::string& bytes) {
  const int memory = memfd_create("safetensors_fuzz", 0);
  if (memory < 0 || write(memory, bytes.data(), bytes.size()) != static_cast<ssize_t>(bytes.size()))
    fail("no memory for a file");
  try {
    voltapile::import_weights("/proc/self/fd/" + std::to_string(memory), deck(),
                              []() -> std::filesystem::path { throw Accepted(); });
    fail("no folder was asked for");
  } catch (const Accepted&) {
  } catch (const voltapile::Error& error) {
    const std::string message = error.what();
    if (error.code() != voltapile::ExitCode::bad_data || message.empty()) fail(message);
    for (const char c : message)
      if (c != '\n' && (c < ' ' || c > '~')) fail("unprintable message: " + message);
  }
  close(memory);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string input(data, data + size);
  import_bytes(input);
  const size_t end = input.find("}}");
  if (end == std::string::npos || end < kLengthBytes) return 0;
  const uint64_t length = end + 2 - kLengthBytes;
  std::memcpy(input.data(), &length, kLengthBytes);
  import_bytes(input);
  return 0;
}
