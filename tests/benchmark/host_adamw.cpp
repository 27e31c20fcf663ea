// Host AdamW against streams over the same memory: each round runs every stream and every AdamW
// once. A stream reads and writes in place what AdamW does, with one fused multiply-add an array.
// Prints JSON: bytes moved an element, and seconds of each round.
//
//   host_adamw [millions of elements = 64] [threads = 2] [rounds = 7] [cpu]
//
// With "cpu", one thread and its processor time, for a machine that others use.
// host_adamw_against_pytorch.py reads it and compares.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <immintrin.h>
#include <time.h>

#include "voltapile/base/clock.hpp"
#include "voltapile/device/host/adamw.hpp"
#include "voltapile/device/host/memory.hpp"

#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // g++ 12 means its own header

namespace voltapile::host {
namespace {

constexpr int64_t kGrain = 32768;

enum class Store { cached, streamed };

struct Arrays {
  TensorView gradients, master, m, v, weights;
};

// 32 elements at a time; `weights` may be missing.
template <class G, class W, Store store>
[[gnu::target("avx512f,avx512bw,avx512vl")]] void stream_512(const Arrays& a, int64_t begin,
                                                             int64_t end) {
  const G* g = static_cast<const G*>(a.gradients.data);
  float *p = a.master.as<float>(), *m = a.m.as<float>(), *v = a.v.as<float>();
  W* w = static_cast<W*>(a.weights.data);
  const __m512 factor = _mm512_set1_ps(0.999f);
  for (int64_t i = begin; i < end; i += 32) {
    __m512 x[2];
    for (int64_t k = 0; k < 2; ++k) {
      const int64_t at = i + 16 * k;
      __m512 y;
      if constexpr (sizeof(G) == 2)
        y = _mm512_cvtph_ps(_mm256_load_si256(reinterpret_cast<const __m256i*>(g + at)));
      else y = _mm512_load_ps(g + at);
      x[k] = _mm512_fmadd_ps(_mm512_load_ps(p + at), factor, y);
      _mm512_store_ps(p + at, x[k]);
      _mm512_store_ps(m + at, _mm512_fmadd_ps(_mm512_load_ps(m + at), factor, y));
      _mm512_store_ps(v + at, _mm512_fmadd_ps(_mm512_load_ps(v + at), factor, y));
    }
    if (!w) continue;
    if constexpr (sizeof(W) == 2) {
      const __m512i both = _mm512_inserti64x4(_mm512_castsi256_si512(_mm512_cvtps_ph(x[0], 0)),
                                              _mm512_cvtps_ph(x[1], 0), 1);
      if (store == Store::streamed) _mm512_stream_si512(reinterpret_cast<__m512i*>(w + i), both);
      else _mm512_store_si512(w + i, both);
    } else {
      for (int64_t k = 0; k < 2; ++k)
        if (store == Store::streamed) _mm512_stream_ps(w + i + 16 * k, x[k]);
        else _mm512_store_ps(w + i + 16 * k, x[k]);
    }
  }
  _mm_sfence();
}

template <class G, class W, Store store>
[[gnu::target("avx2,fma,f16c")]] void stream_256(const Arrays& a, int64_t begin, int64_t end) {
  const G* g = static_cast<const G*>(a.gradients.data);
  float *p = a.master.as<float>(), *m = a.m.as<float>(), *v = a.v.as<float>();
  W* w = static_cast<W*>(a.weights.data);
  const __m256 factor = _mm256_set1_ps(0.999f);
  for (int64_t i = begin; i < end; i += 16) {
    __m256 x[2];
    for (int64_t k = 0; k < 2; ++k) {
      const int64_t at = i + 8 * k;
      __m256 y;
      if constexpr (sizeof(G) == 2)
        y = _mm256_cvtph_ps(_mm_load_si128(reinterpret_cast<const __m128i*>(g + at)));
      else y = _mm256_load_ps(g + at);
      x[k] = _mm256_fmadd_ps(_mm256_load_ps(p + at), factor, y);
      _mm256_store_ps(p + at, x[k]);
      _mm256_store_ps(m + at, _mm256_fmadd_ps(_mm256_load_ps(m + at), factor, y));
      _mm256_store_ps(v + at, _mm256_fmadd_ps(_mm256_load_ps(v + at), factor, y));
    }
    if (!w) continue;
    if constexpr (sizeof(W) == 2) {
      const __m256i both = _mm256_set_m128i(_mm256_cvtps_ph(x[1], 0), _mm256_cvtps_ph(x[0], 0));
      if (store == Store::streamed) _mm256_stream_si256(reinterpret_cast<__m256i*>(w + i), both);
      else _mm256_store_si256(reinterpret_cast<__m256i*>(w + i), both);
    } else {
      for (int64_t k = 0; k < 2; ++k)
        if (store == Store::streamed) _mm256_stream_ps(w + i + 8 * k, x[k]);
        else _mm256_store_ps(w + i + 8 * k, x[k]);
    }
  }
  _mm_sfence();
}

using Stream = void (*)(const Arrays&, int64_t, int64_t);
template <class G, class W>
std::vector<std::pair<std::string, Stream>> streams() {
  std::vector<std::pair<std::string, Stream>> all;
  if (__builtin_cpu_supports("avx2")) {
    all.emplace_back("avx2", stream_256<G, W, Store::cached>);
    all.emplace_back("avx2 past the caches", stream_256<G, W, Store::streamed>);
  }
  if (__builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl")) {
    all.emplace_back("avx512", stream_512<G, W, Store::cached>);
    all.emplace_back("avx512 past the caches", stream_512<G, W, Store::streamed>);
  }
  return all;
}

struct Timed {
  std::string group, name;
  double bytes;  // an element's
  std::function<void()> run;
  std::vector<double> seconds;
};

class Benchmark {
 public:
  Benchmark(int64_t n, int threads) : n_(n), pool_(threads), arrays_(9) {
    state_.inputs.learning_rate = 1e-4;
    state_.multiplier = 1;
    state_.adam_step = 10;
    gradients_ = tensor(0, DType::f32, "gradients");
    master_ = tensor(1, DType::f32, "master");
    m_ = tensor(2, DType::f32, "m");
    v_ = tensor(3, DType::f32, "v");
    weights_ = tensor(4, DType::f32, "weights");
    moments_ = {tensor(5, DType::u8, "m codes"), tensor(6, DType::u8, "v codes"),
                tensor(7, DType::f32, "m scales", n / kQuantiseBlock),
                tensor(8, DType::f32, "v scales", n / kQuantiseBlock)};
    // Numbers of an ordinary size, whichever way gradients are read.
    fill(gradients_, 0x2c003c00u);
    for (const TensorView& t : {master_, m_, v_}) fill(t, 0x3c23d70au);  // 0.01
    for (const TensorView& t : {moments_.m_codes, moments_.v_codes}) fill(t, 0x45362718u);
    for (const TensorView& t : {moments_.m_scales, moments_.v_scales}) fill(t, 0x3c23d70au);
  }

  template <class G, class W>
  void add(const std::string& group, bool with_weights) {
    const Arrays a = {as(gradients_, dtype_of<G>::value), master_, m_, v_,
                      with_weights ? as(weights_, dtype_of<W>::value) : TensorView{}};
    const double bytes = sizeof(G) + 6 * 4 + (with_weights ? sizeof(W) : 0);
    for (const auto& [name, stream] : streams<G, W>())
      timed.push_back({group,
                       "stream, " + name,
                       bytes,
                       [this, a, stream = stream] {
                         pool_.for_each_share(n_, kGrain, [&](int64_t begin, int64_t end) {
                           stream(a, begin, end);
                         });
                       },
                       {}});
    AdamWTask task;
    task.gradients = a.gradients;
    task.master = master_;
    task.m = m_;
    task.v = v_;
    task.weights = a.weights;
    task.runs = {&run_, 1};
    task.rules.weight_decay = 0.01;
    task.state = &state_;
    timed.push_back({group, "adamw", bytes, [this, task] { adamw(pool_, task); }, {}});
    task.m = task.v = {};
    task.moments = moments_;
    timed.push_back({group,
                     "adamw, 8-bit moments",
                     bytes - 12 + 8.0 / kQuantiseBlock,
                     [this, task] { adamw(pool_, task); },
                     {}});
  }

  std::vector<Timed> timed;

 private:
  TensorView tensor(size_t place, DType type, const char* what, int64_t elements = 0) {
    const TensorView t{nullptr, type, {elements == 0 ? n_ : elements}};
    arrays_[place] = compute_memory(t.bytes(), what, pool_);
    return {arrays_[place].data(), type, t.shape};
  }
  static TensorView as(const TensorView& t, DType type) { return {t.data, type, t.shape}; }
  void fill(const TensorView& t, uint32_t word) {
    auto* words = static_cast<uint32_t*>(t.data);
    pool_.for_each_share(
        static_cast<int64_t>(t.bytes() / 4), kGrain,
        [&](int64_t begin, int64_t end) { std::fill(words + begin, words + end, word); });
  }

  int64_t n_;
  UpdateRun run_ = {0, n_, 1, 1};
  ThreadPool pool_;
  StepState state_;
  std::vector<Buffer> arrays_;
  TensorView gradients_, master_, m_, v_, weights_;
  Moments8 moments_;
};

double processor_seconds() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

int run(int argc, char** argv) {
  const auto number = [&](int i, int usual) { return argc > i ? std::atoi(argv[i]) : usual; };
  const int64_t n = int64_t{number(1, 64)} << 20;
  const bool busy = argc > 4 && std::string(argv[4]) == "cpu";
  const int threads = busy ? 1 : number(2, 2), rounds = number(3, 7);
  double (*const clock)() = busy ? processor_seconds : now_seconds;
  Benchmark benchmark(n, threads);
  benchmark.add<Half, Half>("f16 gradients, f16 weights", true);
  benchmark.add<float, Half>("f32 gradients, f16 weights", true);
  benchmark.add<float, float>("f32 gradients, f32 weights", true);
  benchmark.add<float, float>("f32 gradients, no weights", false);
  for (int round = -1; round < rounds; ++round)  // the first does not count
    for (Timed& one : benchmark.timed) {
      const double begin = clock();
      one.run();
      if (round >= 0) one.seconds.push_back(clock() - begin);
    }
  std::printf("{\"elements\": %lld, \"threads\": %d, \"instruction_set\": \"%s\", \"timed\": [",
              static_cast<long long>(n), threads, std::string(instruction_set()).c_str());
  const char* separator = "";
  for (const Timed& one : benchmark.timed) {
    std::printf("%s\n  {\"group\": \"%s\", \"name\": \"%s\", \"bytes\": %g, \"seconds\": [",
                separator, one.group.c_str(), one.name.c_str(), one.bytes);
    for (size_t i = 0; i < one.seconds.size(); ++i)
      std::printf("%s%.6f", i == 0 ? "" : ", ", one.seconds[i]);
    std::printf("]}");
    separator = ",";
  }
  std::printf("]}\n");
  return 0;
}

}  // namespace
}  // namespace voltapile::host

int main(int argc, char** argv) { return voltapile::host::run(argc, argv); }
