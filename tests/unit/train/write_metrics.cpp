// Trains nothing and records a step every few milliseconds, publishing each time, until it is
// killed; for the test that reads meanwhile.
// usage: write_metrics RUN_FOLDER RESUME_STEP LAST_STEP
#include <cstdlib>

#include <unistd.h>

#include "voltapile/train/metrics.hpp"

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  const long long resume = std::atoll(argv[2]), last = std::atoll(argv[3]);
  voltapile::Metrics metrics(argv[1], resume);
  for (int64_t step = resume + 1; step <= last; ++step) {
    metrics.add(voltapile::TrainRecord{.step = step, .loss = 1.0 / static_cast<double>(step)});
    if (step % 10 == 0) {
      metrics.add(
          voltapile::EvalRecord{.step = step, .loss = 0.5, .top1 = 0.9, .top5 = 1, .samples = 100});
    }
    metrics.publish();
    usleep(1000);
  }
}
