#include <algorithm>
#include <filesystem>

#include <unistd.h>

#include "voltapile/deck/parse.hpp"
#include "voltapile/train/trainer.hpp"

#include "workbench.hpp"

namespace voltapile::bench {
namespace {

namespace fs = std::filesystem;

struct Training {
  const char* name;
  int64_t image, patch, dim, depth, heads, micro, steps, warm_up;
  int readers;  // threads that make pictures: a GPU must not wait for them
};

Training training_of(const BenchOptions& options) {
  if (options.quick) return {"a small ViT", 32, 8, 64, 2, 2, 4, 6, 3, 1};
  if (options.device == DeviceKind::cpu) return {"ViT-Ti/16", 224, 16, 192, 12, 3, 8, 8, 3, 1};
  return {"ViT-B/16", 224, 16, 768, 12, 12, 128, 30, 10, 8};
}

std::string deck_of(const Training& t, const BenchOptions& options, int ranks,
                    const std::string& folder) {
  return format(R"([run]
name = "bench"
dir = '{}'
device = "{}"
steps = {}
[model]
image = {}
patch = {}
dim = {}
depth = {}
heads = {}
classes = 1000
pool = "token"
[parallel]
data = {}
[batch]
global = {}
micro = {}
[precision]
type = "{}"
initial_loss_scale = 256
[data]
format = "synthetic"
synthetic_test = 0
workers = {}
[checkpoint]
at_end = false
)",
                folder, options.device == DeviceKind::cuda ? "cuda" : "cpu", t.steps, t.image,
                t.patch, t.dim, t.depth, t.heads, ranks, ranks * t.micro, t.micro,
                name_of(options.type), t.readers);
}

// A folder for the run, which goes when this does; on every rank the same.
class Scratch {
 public:
  explicit Scratch(Communicator& world) {
    std::string made;
    if (world.rank() == 0) {
      std::string pattern = (fs::temp_directory_path() / "voltapile_bench_XXXXXX").string();
      if (mkdtemp(pattern.data()) == nullptr)
        throw Error(ExitCode::failure, format("no folder could be made as {}", pattern));
      made = pattern;
      mine_ = true;
    }
    path_ = world.gather_text(made).front();
  }
  ~Scratch() {
    std::error_code ignored;
    if (mine_) fs::remove_all(path_, ignored);
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  bool mine_ = false;
};

}  // namespace

EndToEnd measure_training(const BenchOptions& options, Communicator& world) {
  const Training t = training_of(options);
  const Scratch scratch(world);
  const std::string deck = deck_of(t, options, world.size(), scratch.path());
  std::vector<double> seconds;
  TrainOptions quiet;
  quiet.quiet = true;
  quiet.on_step = [&](const TrainRecord& record) {
    if (record.step > t.warm_up) seconds.push_back(record.seconds);
  };
  train([&] { return parse_deck(deck, "the built-in deck"); }, world.split(0, world.rank()), quiet);
  EndToEnd found{
      .model = format("{} at {} x {}, {} on each rank", t.name, t.image, t.image, t.micro),
      .samples_per_step = world.size() * t.micro,
      .step = {}};
  if (seconds.empty()) return found;  // rank 0 counts the steps
  std::sort(seconds.begin(), seconds.end());
  found.step = {seconds[seconds.size() / 2], seconds.front(), seconds.back()};
  return found;
}

}  // namespace voltapile::bench
