#include "tuning.hpp"

#include <cerrno>
#include <charconv>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string_view>

#include "voltapile/base/error.hpp"
#include "voltapile/base/log.hpp"

namespace voltapile::cuda {
namespace {

constexpr std::string_view kTitle = "# voltapile: algorithms of matrix products, form 1\n";
constexpr std::string_view kChecksum = "checksum ";
constexpr size_t kDigits = 16;  // of one number

// FNV-1a, 64 bits: http://www.isthe.com/chongo/tech/comp/fnv/
uint64_t checksum_of(std::string_view text) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return hash;
}

std::optional<uint64_t> number_in(std::string_view digits) {
  uint64_t value = 0;
  const char* end = digits.data() + digits.size();
  const auto [stop, fault] = std::from_chars(digits.data(), end, value, 16);
  if (digits.size() != kDigits || fault != std::errc{} || stop != end) return std::nullopt;
  return value;
}

std::optional<std::pair<std::string, Algorithm>> choice_in(std::string_view line) {
  Algorithm algorithm;
  const size_t digits = kDigits * algorithm.size();
  if (line.size() < digits + 2 || line[digits] != ' ') return std::nullopt;
  for (size_t i = 0; i < algorithm.size(); ++i) {
    const auto number = number_in(line.substr(i * kDigits, kDigits));
    if (!number) return std::nullopt;
    algorithm[i] = *number;
  }
  return std::pair{std::string(line.substr(digits + 1)), algorithm};
}

}  // namespace

TuningFile::TuningFile(std::filesystem::path path, std::string gpu, uint64_t library_version)
    : path_(std::move(path)), gpu_(std::move(gpu)), library_version_(library_version) {
  if (!path_.empty() && std::filesystem::exists(path_)) read();
}

std::optional<Algorithm> TuningFile::find(const std::string& product) const {
  const auto found = choices_.find(product);
  if (found == choices_.end()) return std::nullopt;
  return found->second;
}

void TuningFile::keep(const std::string& product, const Algorithm& algorithm) {
  choices_[product] = algorithm;
  if (!path_.empty()) write();
}

std::string TuningFile::heading() const {
  return format("{}gpu {}\ncublaslt {}\n", kTitle, gpu_, library_version_);
}

void TuningFile::read() {
  const auto ignore = [this](const std::string& why) {
    choices_.clear();
    log::warn(
        format("{}: {}; the algorithms of matrix products are chosen anew, and results may "
               "differ from the earlier run's in the last bits",
               path_.string(), why));
  };
  std::ifstream file(path_, std::ios::binary);
  std::ostringstream whole;
  whole << file.rdbuf();
  const std::string contents = whole.str();
  const std::string_view text = contents;

  const size_t last = text.rfind(kChecksum);
  if (!file || last == std::string_view::npos || !text.starts_with(kTitle) ||
      text.substr(last) != format("{}{:016x}\n", kChecksum, checksum_of(text.substr(0, last))))
    return ignore("damaged");
  const std::string wanted = heading();
  if (!text.starts_with(wanted))
    return ignore(
        format("written for another GPU or library than {}, cuBLASLt {}", gpu_, library_version_));
  for (size_t begin = wanted.size(); begin < last;) {
    const size_t end = text.find('\n', begin);
    const auto choice = choice_in(text.substr(begin, end - begin));
    if (!choice) return ignore("damaged");
    choices_.insert(*choice);
    begin = end + 1;
  }
}

void TuningFile::write() const {
  std::string text = heading();
  for (const auto& [product, algorithm] : choices_) {
    for (const uint64_t number : algorithm) text += format("{:016x}", number);
    text += format(" {}\n", product);
  }
  text += format("{}{:016x}\n", kChecksum, checksum_of(text));

  std::error_code error;
  std::filesystem::create_directories(path_.parent_path(), error);  // writing says what is wrong
  std::filesystem::path aside = path_;
  aside += ".new";
  const auto check = [this](bool done, const char* why) {
    if (!done)
      throw Error(ExitCode::failure, format("{}: cannot be written: {}", path_.string(), why));
  };
  std::ofstream file(aside, std::ios::binary);
  file << text;
  file.close();
  check(static_cast<bool>(file), std::strerror(errno));
  std::error_code fault;
  std::filesystem::rename(aside, path_, fault);
  check(!fault, fault.message().c_str());
}

}  // namespace voltapile::cuda
