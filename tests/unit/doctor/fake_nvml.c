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
