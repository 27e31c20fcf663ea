// The loops of AdamW, once for each instruction set; the same bits from all.
#pragma once
#include <span>
#include <string_view>

#include "voltapile/device/host/adamw.hpp"

#include "adamw_rule.hpp"

namespace voltapile::host {

enum class Store { cached, streamed };  // streamed: past the caches, for more than they hold

// Some consecutive elements of one rule.
struct Run {
  const void* gradients;
  float *master, *m, *v;
  float* ema;     // or null
  void* weights;  // or null
  int64_t n;
  RunFactors<float> factors;
  float ema_keep, ema_rest;
  Store store;
};

// Indices of the types in the tables below.
enum Type { kF32 = 0, kF16 = 1, kBF16 = 2, kTypes = 3 };

struct Code {
  std::string_view name;
  void (*update[kTypes][kTypes])(const Run&, const Factors<float>&);  // [gradients][weights]
  void (*round[kTypes])(const float* master, void* weights, int64_t n, Store store);  // [weights]
  // 8-bit moments, at most a block: decoded to n numbers; encoded, giving the scale.
  struct Moment {
    void (*decode)(const uint8_t* codes, float scale, int64_t n, float* to);
    float (*encode)(const float* from, int64_t n, uint8_t* codes);
  } m, v;
  void (*fence)();  // streamed stores are seen by all from here on
};

// What this processor runs, the best first; the last is "portable".
std::span<const Code* const> codes();
void adamw(const Code& code, ThreadPool& pool, const AdamWTask& task);

extern const Code kPortable;
#ifdef __x86_64__
extern const Code kAvx2, kAvx512;
#endif

}  // namespace voltapile::host
