// NVML's GPU performance monitoring, which drivers before Hopper's lack. GPU 0 of fake_nvml.c has
// it, GPU 1 has not. Samples are numbered as they are taken, anew once all were freed; metric M
// between samples A and B is 5 M + 0.1 A + 0.01 B per cent, SM occupancy is refused.
// FAKE_GPM_REFUSES makes the driver refuse to take samples.
#include <stdint.h>
#include <stdlib.h>

struct support {
  unsigned version, supported;
};
struct metric {
  unsigned id;
  int result;
  double value;
  char *short_name, *long_name, *unit;
};
struct metrics {
  unsigned version, count;
  unsigned *from, *to;
  struct metric metrics[98];
};

enum { MISMATCH = 25, REFUSED = 4, OCCUPANCY = 3 };

static int alive = 0;
static unsigned taken = 0;

int fake_gpm_samples(int* count) {
  *count = alive;
  return 0;
}

int nvmlGpmQueryDeviceSupport(void* gpu, struct support* support) {
  if (support->version != 1) return MISMATCH;
  support->supported = (intptr_t)gpu == 1;
  return 0;
}
int nvmlGpmSampleAlloc(unsigned** sample) {
  if (alive++ == 0) taken = 0;
  *sample = calloc(1, sizeof **sample);
  return 0;
}
int nvmlGpmSampleFree(unsigned* sample) {
  free(sample);
  --alive;
  return 0;
}
int nvmlGpmSampleGet(void* gpu, unsigned* sample) {
  if (getenv("FAKE_GPM_REFUSES")) return REFUSED;
  (void)gpu;
  *sample = ++taken;
  return 0;
}
int nvmlGpmMetricsGet(struct metrics* get) {
  if (get->version != 1) return MISMATCH;
  for (unsigned i = 0; i < get->count; ++i) {
    struct metric* metric = &get->metrics[i];
    metric->result = metric->id == OCCUPANCY ? REFUSED : 0;
    metric->value = 5.0 * metric->id + 0.1 * *get->from + 0.01 * *get->to;
  }
  return 0;
}
