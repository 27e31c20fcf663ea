// NVML's functions for two GPUs, the second of which has every fault that can be seen. How many
// there are says FAKE_GPUS; FAKE_FAILS makes the library refuse to start.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct pci {
  char legacy[16];
  unsigned domain, bus, device, ids, subsystem;
  char id[32];
};
struct memory {
  unsigned long long total, free, used;
};

static int number_of(void* gpu) { return (int)(intptr_t)gpu - 1; }

int nvmlInit_v2(void) { return getenv("FAKE_FAILS") ? 9 : 0; }
int nvmlShutdown(void) { return 0; }
int nvmlSystemGetDriverVersion(char* text, unsigned length) {
  return snprintf(text, length, "550.54.15") < 0;
}
int nvmlDeviceGetCount_v2(unsigned* count) {
  const char* gpus = getenv("FAKE_GPUS");
  *count = gpus ? (unsigned)atoi(gpus) : 2;
  return 0;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned number, void** gpu) {
  *gpu = (void*)(intptr_t)(number + 1);
  return number < 2 ? 0 : 15;
}
int nvmlDeviceGetName(void* gpu, char* text, unsigned length) {
  return snprintf(text, length, "Fake V100 %d", number_of(gpu)) < 0;
}
int nvmlDeviceGetPciInfo_v3(void* gpu, struct pci* pci) {
  snprintf(pci->id, sizeof(pci->id), "00000000:FF:1F.%d", number_of(gpu));
  return 0;
}
int nvmlDeviceGetMemoryInfo(void* gpu, struct memory* memory) {
  memory->total = 32000000000ull;
  memory->free = number_of(gpu) ? 20000000000ull : 32000000000ull;
  memory->used = memory->total - memory->free;
  return 0;
}
int nvmlDeviceGetCudaComputeCapability(void* gpu, int* major, int* minor) {
  (void)gpu;
  *major = 7;
  *minor = 0;
  return 0;
}
int nvmlDeviceGetNvLinkState(void* gpu, unsigned link, int* active) {
  *active = number_of(gpu) == 0 && link < 6;
  return 0;
}
int nvmlDeviceGetCurrPcieLinkWidth(void* gpu, unsigned* width) {
  *width = number_of(gpu) ? 4 : 16;
  return 0;
}
int nvmlDeviceGetMaxPcieLinkWidth(void* gpu, unsigned* width) {
  (void)gpu;
  *width = 16;
  return 0;
}
int nvmlDeviceGetComputeMode(void* gpu, int* mode) {
  (void)gpu;
  *mode = 0;
  return 0;
}
int nvmlDeviceGetTotalEccErrors(void* gpu, int type, int since, unsigned long long* count) {
  *count = type == 1 && since == 0 && number_of(gpu) ? 3 : 0;
  return 0;
}
int nvmlDeviceGetTopologyCommonAncestor(void* a, void* b, int* ancestor) {
  *ancestor = a == b ? 0 : 50;
  return 0;
}

// What a sampler asks. Each look at the energy adds 250 J to GPU 0; GPU 1 has no such counter, as
// before Volta, nor NVLinks, and draws 100 W.
struct utilization {
  unsigned gpu, memory;
};
struct field {
  unsigned id, scope;
  long long timestamp, latency;
  int type, result;
  unsigned long long value;
};

int nvmlDeviceGetHandleByPciBusId_v2(const char* address, void** gpu) {
  if (strncmp(address, "0000:FF:1F.", 11) != 0) return 6;
  return nvmlDeviceGetHandleByIndex_v2((unsigned)(address[11] - '0'), gpu);
}
int nvmlDeviceGetUtilizationRates(void* gpu, struct utilization* use) {
  use->gpu = number_of(gpu) ? 25 : 90;
  use->memory = 40;
  return 0;
}
int nvmlDeviceGetPowerUsage(void* gpu, unsigned* milliwatts) {
  *milliwatts = number_of(gpu) ? 100000 : 290000;
  return 0;
}
int nvmlDeviceGetClockInfo(void* gpu, int type, unsigned* megahertz) {
  (void)gpu;
  *megahertz = type == 1 ? 1530 : type == 2 ? 877 : 1;
  return 0;
}
int nvmlDeviceGetTemperature(void* gpu, int sensor, unsigned* celsius) {
  (void)gpu;
  *celsius = 61;
  return sensor == 0 ? 0 : 2;
}
int nvmlDeviceGetPcieThroughput(void* gpu, int counter, unsigned* kilobytes) {
  (void)gpu;
  *kilobytes = counter == 0 ? 3000 : 5000;  // sent, received
  return 0;
}
int nvmlDeviceGetFieldValues(void* gpu, int count, struct field* fields) {
  static unsigned long long looks = 0;
  ++looks;
  for (int i = 0; i < count; ++i) {
    fields[i].result = number_of(gpu) == 0 && fields[i].scope == ~0u ? 0 : 3;
    fields[i].value = (fields[i].id == 138 ? 10 : 20) * looks;  // KiB sent, received
  }
  return 0;
}
int nvmlDeviceGetTotalEnergyConsumption(void* gpu, unsigned long long* millijoules) {
  static unsigned long long spent = 7000000;
  spent += 250000;
  *millijoules = spent;
  return number_of(gpu) ? 3 : 0;
}
