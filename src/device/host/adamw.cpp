#include "voltapile/device/host/adamw.hpp"

#include <algorithm>
#include <functional>
#include <vector>

#include "voltapile/device/shapes.hpp"

#include "adamw_code.hpp"

namespace voltapile::host {
namespace {

constexpr int64_t kGrain = 32768;  // elements handed out at a time
static_assert(kGrain % kQuantiseBlock == 0);
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

void check(std::string_view operation, const Moments8& moments, int64_t n) {
  const int64_t blocks = (n + kQuantiseBlock - 1) / kQuantiseBlock;
  shapes::expect(operation, "m codes", moments.m_codes, DType::u8, n);
  shapes::expect(operation, "v codes", moments.v_codes, DType::u8, n);
  shapes::expect(operation, "m scales", moments.m_scales, DType::f32, blocks);
  shapes::expect(operation, "v scales", moments.v_scales, DType::f32, blocks);
}

void check(const AdamWTask& task) {
  const int64_t n = task.master.elements();
  shapes::expect("adamw", "master", task.master, DType::f32, n);
  shapes::expect("adamw", "gradients", task.gradients, task.gradients.dtype, n);
  if (task.moments.m_codes) {
    VP_CHECK(!task.m && !task.v, "adamw: moments both in f32 and in 8 bits");
    check("adamw", task.moments, n);
  } else {
    shapes::expect("adamw", "m", task.m, DType::f32, n);
    shapes::expect("adamw", "v", task.v, DType::f32, n);
  }
  shapes::expect_optional("adamw", "ema", task.ema, DType::f32, n);
  shapes::expect_optional("adamw", "weights", task.weights, task.weights.dtype, n);
  VP_CHECK(task.state, "adamw needs the step's state");
  VP_CHECK(!task.ema || (0 <= task.ema_decay && task.ema_decay <= 1), "adamw: ema decay {}",
           task.ema_decay);
}

// The first run that ends after `at`.
auto run_after(std::span<const UpdateRun> runs, int64_t at) {
  return std::upper_bound(runs.begin(), runs.end(), at,
                          [](int64_t place, const UpdateRun& r) { return place < r.end; });
}

bool is_frozen(std::span<const UpdateRun> runs, int64_t begin, int64_t end) {
  const auto run = run_after(runs, begin);
  return run == runs.end() || run->begin >= end;
}

// Runs body(begin, end, run) over the parts of [begin, end) that follow one rule each; null:
// frozen.
template <class F>
void for_alike(std::span<const UpdateRun> runs, int64_t begin, int64_t end, F&& body) {
  for (auto run = run_after(runs, begin); begin < end;) {
    const bool inside = run != runs.end() && run->begin <= begin;
    const int64_t border = run == runs.end() ? end : inside ? run->end : run->begin;
    const int64_t stop = std::min(end, border);
    body(begin, stop, inside ? &*run : nullptr);
    if (inside && stop == run->end) ++run;
    begin = stop;
  }
}

// One kind of moment of a task: its codes and scales.
struct Moment {
  const Code::Moment& code;
  uint8_t* codes;
  float* scales;
  // Elements [begin, end) of a block, to or from `numbers`.
  void decode(int64_t begin, int64_t end, float* numbers) const {
    code.decode(codes + begin, scales[begin / kQuantiseBlock], end - begin, numbers);
  }
  void encode(int64_t begin, int64_t end, const float* numbers) const {
    scales[begin / kQuantiseBlock] = code.encode(numbers, end - begin, codes + begin);
  }
};
Moment m_of(const Code& code, const Moments8& moments) {
  return {code.m, moments.m_codes.as<uint8_t>(), moments.m_scales.as<float>()};
}
Moment v_of(const Code& code, const Moments8& moments) {
  return {code.v, moments.v_codes.as<uint8_t>(), moments.v_scales.as<float>()};
}

template <class F>
void for_blocks(int64_t begin, int64_t end, F&& body) {
  for (int64_t at = begin; at < end; at += kQuantiseBlock)
    body(at, std::min(at + kQuantiseBlock, end));
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
  // The weights may be where gradients were.
  const auto leave = [&](int64_t begin, int64_t end) {
    if (weights) round(at<float>(task.master, begin), at(weights, begin), end - begin, store);
  };
  // m and v: of element `begin`.
  const auto run = [&](int64_t begin, int64_t end, float* m, float* v) {
    for_alike(task.runs, begin, end, [&](int64_t from, int64_t to, const UpdateRun* rule) {
      if (rule == nullptr) return leave(from, to);
      const Run alike = {at(task.gradients, from),
                         at<float>(task.master, from),
                         m + (from - begin),
                         v + (from - begin),
                         at<float>(task.ema, from),
                         at(weights, from),
                         to - from,
                         factors_of(factors, *rule),
                         keep,
                         1 - keep,
                         store};
      update(alike, factors);
    });
  };
  const auto run_8bit = [&](int64_t begin, int64_t end) {
    const Moment first = m_of(code, task.moments), second = v_of(code, task.moments);
    alignas(64) float m[kQuantiseBlock], v[kQuantiseBlock];
    for_blocks(begin, end, [&](int64_t from, int64_t to) {
      if (is_frozen(task.runs, from, to)) return leave(from, to);
      first.decode(from, to, m);
      second.decode(from, to, v);
      run(from, to, m, v);
      first.encode(from, to, m);
      second.encode(from, to, v);
    });
  };
  const auto piece = [&](int64_t begin, int64_t end) {
    if (skip) leave(begin, end);
    else if (task.m) run(begin, end, at<float>(task.m, begin), at<float>(task.v, begin));
    else run_8bit(begin, end);
    code.fence();
  };
  pool.for_each_share(n, kGrain, std::ref(piece));  // a reference: no allocation
}

void decode_moments(ThreadPool& pool, const Moments8& moments, TensorView m, TensorView v) {
  const int64_t n = m.elements();
  check("decode_moments", moments, n);
  shapes::expect("decode_moments", "m", m, DType::f32, n);
  shapes::expect("decode_moments", "v", v, DType::f32, n);
  const Code& code = *codes().front();
  const auto piece = [&](int64_t begin, int64_t end) {
    for_blocks(begin, end, [&](int64_t from, int64_t to) {
      m_of(code, moments).decode(from, to, m.as<float>() + from);
      v_of(code, moments).decode(from, to, v.as<float>() + from);
    });
  };
  pool.for_each_share(n, kGrain, std::ref(piece));
}

void encode_moments(ThreadPool& pool, TensorView m, TensorView v, const Moments8& moments) {
  const int64_t n = m.elements();
  check("encode_moments", moments, n);
  shapes::expect("encode_moments", "m", m, DType::f32, n);
  shapes::expect("encode_moments", "v", v, DType::f32, n);
  const Code& code = *codes().front();
  const auto piece = [&](int64_t begin, int64_t end) {
    for_blocks(begin, end, [&](int64_t from, int64_t to) {
      m_of(code, moments).encode(from, to, m.as<float>() + from);
      v_of(code, moments).encode(from, to, v.as<float>() + from);
    });
  };
  pool.for_each_share(n, kGrain, std::ref(piece));
}

}  // namespace voltapile::host
