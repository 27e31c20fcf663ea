#include "voltapile/device/host/adamw.hpp"

#include <algorithm>
#include <functional>
#include <vector>

#include "voltapile/device/shapes.hpp"

#include "adamw_code.hpp"

namespace voltapile::host {
namespace {

constexpr int64_t kGrain = 32768;  // elements handed out at a time
// Weights of fewer elements are written through the caches: who reads them next finds them there.
constexpr int64_t kStreamed = int64_t{1} << 22;

Type type_of(const TensorView& t, std::string_view name) {
  switch (t.dtype) {
    case DType::f32: return kF32;
    case DType::f16: return kF16;
    case DType::bf16: return kBF16;
    default: VP_CHECK(false, "adamw: {} of {}", name, name_of(t.dtype));
  }
}

template <class T>
T* at(const TensorView& t, int64_t begin) {
  return t ? t.as<T>() + begin : nullptr;
}
void* at(const TensorView& t, int64_t begin) {
  return t ? static_cast<std::byte*>(t.data) + static_cast<size_t>(begin) * bytes_of(t.dtype)
           : nullptr;
}

void check(const AdamWTask& task) {
  const int64_t n = task.master.elements();
  shapes::expect("adamw", "master", task.master, DType::f32, n);
  shapes::expect("adamw", "gradients", task.gradients, task.gradients.dtype, n);
  shapes::expect("adamw", "m", task.m, DType::f32, n);
  shapes::expect("adamw", "v", task.v, DType::f32, n);
  shapes::expect_optional("adamw", "ema", task.ema, DType::f32, n);
  shapes::expect_optional("adamw", "weights", task.weights, task.weights.dtype, n);
  VP_CHECK(task.state, "adamw needs the step's state");
  VP_CHECK(!task.ema || (0 <= task.ema_decay && task.ema_decay <= 1), "adamw: ema decay {}",
           task.ema_decay);
}

// Runs body(begin, end, decays) over the parts of [begin, end) that decay, and those that do not.
template <class F>
void for_alike(std::span<const Range> decayed, int64_t begin, int64_t end, F&& body) {
  auto range = std::upper_bound(decayed.begin(), decayed.end(), begin,
                                [](int64_t at, const Range& r) { return at < r.end; });
  while (begin < end) {
    while (range != decayed.end() && range->end <= begin) ++range;
    const bool inside = range != decayed.end() && range->begin <= begin;
    const int64_t border = range == decayed.end() ? end : inside ? range->end : range->begin;
    const int64_t stop = std::min(end, border);
    body(begin, stop, inside);
    begin = stop;
  }
}

}  // namespace

std::span<const Code* const> codes() {
  static const std::vector<const Code*> found = [] {
    std::vector<const Code*> list;
#ifdef __x86_64__
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                      __builtin_cpu_supports("f16c");
    if (avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq"))
      list.push_back(&kAvx512);
    if (avx2) list.push_back(&kAvx2);
#endif
    list.push_back(&kPortable);
    return list;
  }();
  return found;
}

std::string_view instruction_set() { return codes().front()->name; }

void adamw(ThreadPool& pool, const AdamWTask& task) { adamw(*codes().front(), pool, task); }

void adamw(const Code& code, ThreadPool& pool, const AdamWTask& task) {
  check(task);
  const int64_t n = task.master.elements();
  const TensorView weights = task.weights.data == task.master.data ? TensorView{} : task.weights;
  const bool in_place = weights.data == task.gradients.data;  // whose lines are in the cache
  const Store store = n < kStreamed || in_place ? Store::cached : Store::streamed;
  const auto update =
      code.update[type_of(task.gradients, "gradients")][type_of(weights, "weights")];
  const auto round = code.round[type_of(weights, "weights")];
  const Factors<float> factors = factors_of<float>(task.rules, *task.state);
  const auto keep = static_cast<float>(task.ema_decay);
  const bool skip = task.state->skip != 0;
  if (skip && !weights) return;
  const auto piece = [&](int64_t begin, int64_t end) {
    if (skip) {
      round(at<float>(task.master, begin), at(weights, begin), end - begin, store);
    } else {
      for_alike(task.decayed, begin, end, [&](int64_t from, int64_t to, bool decays) {
        const Run run = {at(task.gradients, from),
                         at<float>(task.master, from),
                         at<float>(task.m, from),
                         at<float>(task.v, from),
                         at<float>(task.ema, from),
                         at(weights, from),
                         to - from,
                         decays ? factors.decay : 1.0f,
                         keep,
                         1 - keep,
                         store};
        update(run, factors);
      });
    }
    code.fence();
  };
  pool.for_each_share(n, kGrain, std::ref(piece));  // a reference: no allocation
}

}  // namespace voltapile::host
