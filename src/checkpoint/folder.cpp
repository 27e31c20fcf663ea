#include "folder.hpp"

#include <algorithm>
#include <optional>
#include <vector>

#include "voltapile/base/error.hpp"
#include "voltapile/base/log.hpp"
#include "voltapile/checkpoint/durable.hpp"

namespace voltapile {
namespace {

namespace fs = std::filesystem;
constexpr std::string_view kPrefix = "step_";
constexpr const char* kLatest = "latest";

// The step of "step_00000100" and its suffix (".partial"), if the name has that form.
struct StepName {
  int64_t step;
  std::string suffix;
};
std::optional<StepName> parse_name(const std::string& name) {
  if (!name.starts_with(kPrefix)) return std::nullopt;
  const size_t end = std::min(name.find('.'), name.size());
  const std::string digits = name.substr(kPrefix.size(), end - kPrefix.size());
  const auto is_digit = [](char c) { return '0' <= c && c <= '9'; };
  if (digits.size() < 8 || digits.size() > 18 ||
      !std::all_of(digits.begin(), digits.end(), is_digit)) {
    return std::nullopt;
  }
  return StepName{std::stoll(digits), name.substr(end)};
}

fs::path with_suffix(fs::path path, const char* suffix) {
  path += suffix;
  return path;
}

// Gone at once for whoever looks, then deleted file by file.
void remove_step(const fs::path& folder) {
  const fs::path removed = with_suffix(folder, ".removed");
  fs::rename(folder, removed);
  fs::remove_all(removed);
}

void move_latest(const fs::path& checkpoints, const std::string& name) {
  const fs::path aside = checkpoints / (std::string(kLatest) + ".partial");
  fs::remove(aside);
  fs::create_directory_symlink(name, aside);
  fs::rename(aside, checkpoints / kLatest);
}

}  // namespace

std::string step_name(int64_t step) { return format("{}{:08d}", kPrefix, step); }

void tidy(const fs::path& checkpoints) {
  std::vector<fs::path> left;
  for (const auto& entry : fs::directory_iterator(checkpoints)) left.push_back(entry.path());
  for (const fs::path& path : left) {
    const auto name = parse_name(path.filename().string());
    if (!name) continue;
    if (name->suffix == ".partial" || name->suffix == ".removed") fs::remove_all(path);
    if (name->suffix == ".replaced") {
      const fs::path whole = checkpoints / step_name(name->step);
      if (fs::exists(whole)) {
        fs::remove_all(path);
      } else {
        fs::rename(path, whole);
      }
    }
  }
}

void publish_step(const fs::path& checkpoints, int64_t step) {
  const fs::path whole = checkpoints / step_name(step);
  const fs::path partial = with_suffix(whole, ".partial");
  const fs::path replaced = with_suffix(whole, ".replaced");
  // A folder cannot be renamed onto another. A kill between the two renames leaves `latest` naming
  // a folder that is not there: latest_checkpoint() and tidy() know where it went.
  const bool again = fs::exists(whole);
  if (again) fs::rename(whole, replaced);
  try {
    fs::rename(partial, whole);
  } catch (...) {
    if (again) fs::rename(replaced, whole);
    throw;
  }
  sync_folder(checkpoints);
  move_latest(checkpoints, whole.filename().string());
  sync_folder(checkpoints);
  if (again) fs::remove_all(replaced);
}

std::vector<int64_t> whole_steps(const fs::path& checkpoints) {
  std::vector<int64_t> steps;
  for (const auto& entry : fs::directory_iterator(checkpoints)) {
    const auto name = parse_name(entry.path().filename().string());
    if (name && name->suffix.empty() && !entry.is_symlink() && entry.is_directory()) {
      steps.push_back(name->step);
    }
  }
  std::sort(steps.begin(), steps.end());
  return steps;
}

void go_back(const fs::path& checkpoints, int64_t step) {
  tidy(checkpoints);
  move_latest(checkpoints, step_name(step));
  sync_folder(checkpoints);
  for (const int64_t later : whole_steps(checkpoints))
    if (later > step) remove_step(checkpoints / step_name(later));
}

void prune(const fs::path& checkpoints, const Keep& keep) {
  if (keep.last <= 0) return;
  try {
    const std::vector<int64_t> steps = whole_steps(checkpoints);
    const auto latest = latest_checkpoint(checkpoints);
    auto left = static_cast<int64_t>(steps.size());
    for (const int64_t old : steps) {
      if (left <= keep.last) break;
      const fs::path folder = checkpoints / step_name(old);
      if (latest && latest->filename() == folder.filename()) continue;
      if (keep.every > 0 && old % keep.every == 0) {
        --left;
        continue;
      }
      remove_step(folder);
      --left;
    }
  } catch (const std::exception& error) {
    log::warn(format("old checkpoints were not removed: {}", error.what()));
  }
}

std::optional<fs::path> latest_checkpoint(const fs::path& checkpoints) {
  const fs::path latest = checkpoints / kLatest;
  if (!fs::exists(fs::symlink_status(latest))) return std::nullopt;
  if (!fs::is_symlink(latest)) return latest;
  const fs::path folder = checkpoints / fs::read_symlink(latest);
  if (fs::exists(folder)) return folder;
  const fs::path replaced = with_suffix(folder, ".replaced");
  if (fs::exists(replaced)) return replaced;
  throw Error(ExitCode::bad_data,
              format("{} names {}, which is not there; point it at a checkpoint that is (ln -sfn), "
                     "or remove it to start without one",
                     latest.string(), folder.filename().string()));
}

fs::path resolve_checkpoint(const fs::path& named) {
  if (const auto latest = latest_checkpoint(named / "checkpoints")) return *latest;
  if (const auto latest = latest_checkpoint(named)) return *latest;
  return named;
}

}  // namespace voltapile
