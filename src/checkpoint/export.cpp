#include <cerrno>
#include <cmath>
#include <cstring>

#include <fcntl.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include "voltapile/base/version.hpp"
#include "voltapile/checkpoint/durable.hpp"
#include "voltapile/checkpoint/interchange.hpp"
#include "voltapile/deck/parse.hpp"

#include "safetensors.hpp"
#include "whole.hpp"

namespace voltapile {
namespace {

namespace fs = std::filesystem;

// A new file that takes its name when all of it is on the disk; destroyed before, it is removed.
class NewFile {
 public:
  explicit NewFile(fs::path path) : path_(std::move(path)), partial_(path_) {
    partial_ += ".partial";
    fd_ = ::open(partial_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd_ < 0) fail("cannot create this file");
  }
  ~NewFile() {
    if (fd_ < 0) return;
    ::close(fd_);
    ::unlink(partial_.c_str());
  }
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;

  void write(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      const ssize_t wrote = ::write(fd_, bytes.data(), bytes.size());
      if (wrote < 0 && errno == EINTR) continue;
      if (wrote < 0) fail("cannot write");
      bytes = bytes.subspan(static_cast<size_t>(wrote));
    }
  }
  void publish() {
    if (::fsync(fd_) != 0) fail("cannot sync this file to the disk");
    if (::rename(partial_.c_str(), path_.c_str()) != 0) fail("cannot take its name");
    ::close(std::exchange(fd_, -1));
    sync_folder(fs::absolute(path_).parent_path());
  }

 private:
  [[noreturn]] void fail(const char* what) const {
    throw Error(ExitCode::failure,
                format("{}: {}: {}", partial_.string(), what, std::strerror(errno)));
  }

  fs::path path_, partial_;
  int fd_ = -1;
};

std::map<std::string, std::string> metadata_of(const RunState& state, const fs::path& checkpoint) {
  const Deck deck = parse_deck(state.deck, checkpoint.string());
  const Deck::Model& model = deck.model;
  const auto number = [](int64_t value) { return std::to_string(value); };
  return {
      {"format", "pt"},  // transformers reads no file without it
      {"voltapile", kVersion},
      {"step", number(state.step)},
      {"image", format("{}x{}", model.image[0], model.image[1])},
      {"patch", format("{}x{}", model.patch[0], model.patch[1])},
      {"grid", format("{}x{}", model.image[0] / model.patch[0], model.image[1] / model.patch[1])},
      {"channels", number(model.channels)},
      {"dim", number(model.dim)},
      {"depth", number(model.depth)},
      {"heads", number(model.heads)},
      {"mlp", number(model.mlp)},
      {"classes", number(model.classes)},
      {"pool", model.pool == Pool::token ? "token" : "mean"},
      {"position", model.position == Position::learned ? "learned" : "sine2d"},
      {"mean", nlohmann::json(deck.data.mean).dump()},
      {"std", nlohmann::json(deck.data.std).dump()}};
}

template <class Stored>
std::vector<std::byte> rounded(const std::vector<float>& values) {
  std::vector<std::byte> bytes(values.size() * sizeof(Stored));
  for (size_t i = 0; i < values.size(); ++i) {
    const auto stored = static_cast<Stored>(values[i]);
    std::memcpy(bytes.data() + i * sizeof(Stored), &stored, sizeof(Stored));
  }
  return bytes;
}

std::vector<std::byte> encode(const std::string& name, const std::vector<float>& values,
                              DType type) {
  if (type == DType::f32) return rounded<float>(values);
  if (type == DType::bf16) return rounded<BFloat16>(values);
  constexpr float kOverflow = 65520;  // rounds to infinity
  for (const float value : values) {
    if (std::fabs(value) < kOverflow) continue;
    throw Error(
        ExitCode::bad_input,
        format("{} has a weight of {}, which f16 cannot hold: use bf16 or f32", name, value));
  }
  return rounded<Half>(values);
}

}  // namespace

safetensors::Layout safetensors_layout(const WholeTensors& tensors, const fs::path& checkpoint,
                                       DType type) {
  safetensors::Layout layout{.metadata = metadata_of(tensors.state(), checkpoint)};
  int64_t at = 0;
  for (const std::string& name : tensors.names("master")) {
    const Shape shape = tensors.shape("master", name);
    const int64_t end = at + shape.elements() * static_cast<int64_t>(bytes_of(type));
    layout.tensors.push_back({name, std::string(safetensors::dtype_name(type)), shape, at, end});
    at = end;
  }
  return layout;
}

Exported export_weights(const fs::path& checkpoint, const fs::path& file, DType type) {
  const WholeTensors tensors(checkpoint);
  const safetensors::Layout layout = safetensors_layout(tensors, checkpoint, type);
  const std::string header = safetensors::header_bytes(layout);
  NewFile out(file);
  out.write(std::as_bytes(std::span(header)));
  for (const safetensors::Tensor& tensor : layout.tensors)
    out.write(encode(tensor.name, tensors.read("master", tensor.name), type));
  out.publish();
  return {static_cast<int64_t>(layout.tensors.size()),
          static_cast<int64_t>(header.size()) + layout.tensors.back().end};
}

}  // namespace voltapile
