#include "gemm.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <optional>
#include <utility>
#include <vector>

#include "voltapile/base/log.hpp"

#include "stream.hpp"
#include "tuning.hpp"

#define VP_CUBLAS(call)                                                                       \
  do {                                                                                        \
    if (const cublasStatus_t vp_code = (call); vp_code != CUBLAS_STATUS_SUCCESS) [[unlikely]] \
      throw_cublas(vp_code, #call);                                                           \
  } while (false)

namespace voltapile::cuda {
namespace {

[[noreturn]] void throw_cublas(cublasStatus_t code, const char* call) {
  throw Error(ExitCode::failure, format("{}: {}", call, cublasLtGetStatusString(code)));
}

constexpr int kCandidates = 16;  // proposals asked for; the library has about 8
constexpr int kRounds = 5;       // timings of each, of which the median counts
constexpr int kShortRepeats = 8;
constexpr float kShortMs = 0.2f;  // products shorter than this are timed kShortRepeats at once
// A later proposal must gain this much over an earlier one: the choice does not hang on noise.
constexpr float kGain = 1.02f;
// Split sums only through f32 parts that are added up in a fixed order afterwards; never in place,
// nor through 16-bit parts.
constexpr uint32_t kReductions =
    CUBLASLT_REDUCTION_SCHEME_NONE | CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
constexpr uint32_t kMostAlignment = 16;  // bytes; no algorithm asks for more

cudaDataType_t data_type(DType type) {
  switch (type) {
    case DType::f16: return CUDA_R_16F;
    case DType::bf16: return CUDA_R_16BF;
    case DType::f32: return CUDA_R_32F;
    default: VP_CHECK(false, "the cuda device multiplies f16, bf16 and f32, not {}", name_of(type));
  }
}

uint32_t alignment_of(const void* address) {
  const auto bits = reinterpret_cast<uintptr_t>(address);
  return bits == 0 ? kMostAlignment
                   : std::min(kMostAlignment, uint32_t{1} << std::min(std::countr_zero(bits), 30));
}

class TimingEvent {
 public:
  TimingEvent() { VP_CUDA(cudaEventCreate(&event_)); }
  ~TimingEvent() { cudaEventDestroy(event_); }
  TimingEvent(const TimingEvent&) = delete;
  TimingEvent& operator=(const TimingEvent&) = delete;
  void record(cudaStream_t stream) const { VP_CUDA(cudaEventRecord(event_, stream)); }
  float ms_since(const TimingEvent& start) const {
    VP_CUDA(cudaEventSynchronize(event_));
    float ms = 0;
    VP_CUDA(cudaEventElapsedTime(&ms, start.event_, event_));
    return ms;
  }

 private:
  cudaEvent_t event_ = nullptr;
};

// How an algorithm divides its sums.
struct Summation {
  int32_t kind = 0, parts = 0, scheme = 0;

  explicit Summation(const cublasLtMatmulAlgo_t& algorithm) {
    const auto get = [&](cublasLtMatmulAlgoConfigAttributes_t attribute, int32_t& value) {
      VP_CUBLAS(cublasLtMatmulAlgoConfigGetAttribute(&algorithm, attribute, &value, sizeof(value),
                                                     nullptr));
    };
    get(CUBLASLT_ALGO_CONFIG_ID, kind);
    get(CUBLASLT_ALGO_CONFIG_SPLITK_NUM, parts);
    get(CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, scheme);
  }
  bool operator==(const Summation&) const = default;
};

}  // namespace

struct MatrixProducts::Key {
  Product product;
  bool bias = false, tf32 = false;
  uint32_t left_alignment = 0, right_alignment = 0, bias_alignment = 0, out_alignment = 0;

  auto operator<=>(const Key&) const = default;
  std::string name() const {
    const auto& p = product;
    return format("{}{}->{} {}x{}x{} {}{} {}{} align {} {} {} {}", name_of(p.factors),
                  tf32 ? " (tf32)" : "", name_of(p.result), p.rows, p.columns, p.inner,
                  p.left == Layout::plain ? 'n' : 't', p.right == Layout::plain ? 'n' : 't',
                  p.into == Into::accumulate ? "add" : "write", bias ? " bias" : "", left_alignment,
                  right_alignment, bias_alignment, out_alignment);
  }
};

// The library's matrices are column-major: to it our row-major matrices are their transposes, and
// out^T = right^T left^T.
struct MatrixProducts::Plan {
  cublasLtMatmulDescOpaque_t operation;  // its bias pointer changes from call to call
  cublasLtMatrixLayoutOpaque_t right, left, out;
  float beta = 0;
  bool bias = false;
  size_t out_bytes = 0;
  cublasLtMatmulAlgo_t algorithm;
  std::optional<Product> plain;  // without an algorithm

  explicit Plan(const Key& key);
  template <class T>
  void set(cublasLtMatmulDescAttributes_t attribute, T value) {
    VP_CUBLAS(cublasLtMatmulDescSetAttribute(&operation, attribute, &value, sizeof(value)));
  }
  // The library's proposals, best guess first; none where it has no algorithm.
  std::vector<cublasLtMatmulAlgo_t> candidates(cublasLtHandle_t handle, const Key& key);
  bool accepts(cublasLtHandle_t handle, const cublasLtMatmulAlgo_t& candidate) {
    cublasLtMatmulHeuristicResult_t result;
    return cublasLtMatmulAlgoCheck(handle, &operation, &right, &left, &out, &out, &candidate,
                                   &result) == CUBLAS_STATUS_SUCCESS &&
           result.workspaceSize <= Context::kWorkspaceBytes;
  }
};

MatrixProducts::Plan::Plan(const Key& key) : bias(key.bias) {
  const Product& p = key.product;
  const auto lay = [](cublasLtMatrixLayoutOpaque_t& layout, DType type, int64_t rows,
                      int64_t columns) {  // of the row-major matrix
    VP_CUBLAS(cublasLtMatrixLayoutInit(&layout, data_type(type), static_cast<uint64_t>(columns),
                                       static_cast<uint64_t>(rows), columns));
  };
  const bool left_plain = p.left == Layout::plain, right_plain = p.right == Layout::plain;
  lay(right, p.factors, right_plain ? p.inner : p.columns, right_plain ? p.columns : p.inner);
  lay(left, p.factors, left_plain ? p.rows : p.inner, left_plain ? p.inner : p.rows);
  lay(out, p.result, p.rows, p.columns);
  VP_CUBLAS(cublasLtMatmulDescInit(
      &operation, key.tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F, CUDA_R_32F));
  set(CUBLASLT_MATMUL_DESC_TRANSA, int32_t{right_plain ? CUBLAS_OP_N : CUBLAS_OP_T});
  set(CUBLASLT_MATMUL_DESC_TRANSB, int32_t{left_plain ? CUBLAS_OP_N : CUBLAS_OP_T});
  if (bias) set(CUBLASLT_MATMUL_DESC_EPILOGUE, uint32_t{CUBLASLT_EPILOGUE_BIAS});
  beta = p.into == Into::accumulate ? 1.0f : 0.0f;
  out_bytes = static_cast<size_t>(p.rows * p.columns) * bytes_of(p.result);
}

std::vector<cublasLtMatmulAlgo_t> MatrixProducts::Plan::candidates(cublasLtHandle_t handle,
                                                                   const Key& key) {
  cublasLtMatmulPreferenceOpaque_t preference;
  VP_CUBLAS(cublasLtMatmulPreferenceInit(&preference));
  const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, auto value) {
    VP_CUBLAS(cublasLtMatmulPreferenceSetAttribute(&preference, attribute, &value, sizeof(value)));
  };
  prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, uint64_t{Context::kWorkspaceBytes});
  prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, kReductions);
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, key.right_alignment);
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, key.left_alignment);
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, key.out_alignment);
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES,
         std::min(key.out_alignment, key.bias_alignment));  // read along with out

  cublasLtMatmulHeuristicResult_t results[kCandidates];
  int found = 0;
  const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
      handle, &operation, &right, &left, &out, &out, &preference, kCandidates, results, &found);
  if (status != CUBLAS_STATUS_NOT_SUPPORTED) VP_CUBLAS(status);
  std::vector<cublasLtMatmulAlgo_t> algorithms;
  for (int i = 0; i < found; ++i)
    if (results[i].state == CUBLAS_STATUS_SUCCESS) algorithms.push_back(results[i].algo);
  return algorithms;
}

struct MatrixProducts::Plans {
  std::map<Key, Plan> by_key;
};

MatrixProducts::MatrixProducts(Context& context)
    : context_(context), plans_(std::make_unique<Plans>()) {
  VP_CUBLAS(cublasLtCreate(&handle_));
  choices_ = std::make_unique<TuningFile>(context.options().tuning_file, context.gpu().name,
                                          cublasLtGetVersion());
}

MatrixProducts::~MatrixProducts() { cublasLtDestroy(handle_); }

void MatrixProducts::multiply(const Product& product, const Operands& operands, Stream& stream) {
  if (product.rows == 0 || product.columns == 0) return;
  if (product.inner == 0 && product.into == Into::accumulate) return;
  VP_CHECK(product.inner > 0, "a product of no terms");
  const bool bias = operands.bias != nullptr;
  VP_CHECK(!bias || (product.into == Into::overwrite && product.result == product.factors),
           "a bias goes with a product that overwrites a result of the factors' type");
  const Key key = {product,
                   bias,
                   product.factors == DType::f32 && context_.options().tf32,
                   alignment_of(operands.left),
                   alignment_of(operands.right),
                   alignment_of(operands.bias),
                   alignment_of(operands.out)};
  VP_CUBLAS(enqueue(plan_of(key, operands, stream), operands, stream));
}

MatrixProducts::Plan& MatrixProducts::plan_of(const Key& key, const Operands& operands,
                                              Stream& stream) {
  auto& known = plans_->by_key;
  if (const auto found = known.find(key); found != known.end()) return found->second;
  Plan plan(key);
  choose(plan, key, operands, stream);
  return known.emplace(key, plan).first->second;
}

cublasStatus_t MatrixProducts::enqueue(Plan& plan, const Operands& operands, Stream& stream) const {
  if (plan.plain) {
    plain_product(*plan.plain, operands, handle_of(stream));
    return CUBLAS_STATUS_SUCCESS;
  }
  if (plan.bias) plan.set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, operands.bias);
  const float alpha = 1;
  return cublasLtMatmul(handle_, &plan.operation, &alpha, operands.right, &plan.right,
                        operands.left, &plan.left, &plan.beta, operands.out, &plan.out,
                        operands.out, &plan.out, &plan.algorithm, context_.workspace(stream),
                        Context::kWorkspaceBytes, handle_of(stream));
}

void MatrixProducts::choose(Plan& plan, const Key& key, const Operands& operands, Stream& stream) {
  const std::string name = key.name();
  if (const auto kept = choices_->find(name)) {
    plan.algorithm = std::bit_cast<cublasLtMatmulAlgo_t>(*kept);
    if (plan.accepts(handle_, plan.algorithm)) return;
    log::warn(
        format("cuBLASLt refuses the algorithm kept for the product {}: it is chosen anew", name));
  }
  const std::vector<cublasLtMatmulAlgo_t> candidates = plan.candidates(handle_, key);
  if (candidates.empty()) {
    log::warn(
        format("cuBLASLt has no algorithm for the product {}: a plain kernel computes it, "
               "slowly",
               name));
    plan.plain = key.product;
    return;
  }
  plan.algorithm = candidates.front();
  cudaStreamCaptureStatus capturing = cudaStreamCaptureStatusNone;
  VP_CUDA(cudaStreamIsCapturing(handle_of(stream), &capturing));
  if (candidates.size() > 1 && capturing == cudaStreamCaptureStatusNone)
    time(candidates, plan, operands, stream);
  choices_->keep(name, std::bit_cast<Algorithm>(plan.algorithm));
}

void MatrixProducts::time(const std::vector<cublasLtMatmulAlgo_t>& candidates, Plan& plan,
                          const Operands& operands, Stream& stream) const {
  const cudaStream_t lane = handle_of(stream);
  // What the product adds to changes with every run, and may be too large for a second copy on the
  // device.
  std::vector<std::byte> before(plan.beta == 0 ? 0 : plan.out_bytes);
  if (!before.empty())
    VP_CUDA(cudaMemcpyAsync(before.data(), operands.out, before.size(), cudaMemcpyDefault, lane));
  VP_CUDA(cudaStreamSynchronize(lane));

  struct Trial {
    cublasLtMatmulAlgo_t algorithm;
    uint64_t checksum;
    std::array<float, kRounds> ms;
    float median() const { return ms[kRounds / 2]; }
  };
  const TimingEvent start, end;
  const auto run = [&](const cublasLtMatmulAlgo_t& algorithm, int repeats, float& ms) {
    plan.algorithm = algorithm;
    start.record(lane);
    for (int i = 0; i < repeats; ++i)
      if (enqueue(plan, operands, stream) != CUBLAS_STATUS_SUCCESS) return false;
    end.record(lane);
    ms = end.ms_since(start) / static_cast<float>(repeats);
    return true;
  };
  auto* checksum = reinterpret_cast<uint64_t*>(context_.scratch(stream));
  std::vector<Trial> trials;
  float ms = 0;
  const float beta = std::exchange(plan.beta, 0.0f);
  for (const auto& candidate : candidates) {
    if (!run(candidate, 1, ms)) continue;  // loads code: the time is not the product's
    Trial trial = {candidate, 0, {}};
    VP_CUDA(cudaMemsetAsync(checksum, 0, sizeof(*checksum), lane));
    add_checksum(operands.out, static_cast<int64_t>(plan.out_bytes), checksum, lane);
    VP_CUDA(cudaMemcpyAsync(&trial.checksum, checksum, sizeof(*checksum), cudaMemcpyDefault, lane));
    VP_CUDA(cudaStreamSynchronize(lane));
    // Of operands that are all zeros the checksum tells nothing: so the sums are split alike too.
    if (trials.empty() || (trial.checksum == trials.front().checksum &&
                           Summation(candidate) == Summation(trials.front().algorithm)))
      trials.push_back(trial);
  }
  plan.beta = beta;
  if (trials.size() > 1) {
    run(trials.front().algorithm, 1, ms);
    const int repeats = ms < kShortMs ? kShortRepeats : 1;
    for (size_t round = 0; round < kRounds; ++round)
      for (Trial& trial : trials) run(trial.algorithm, repeats, trial.ms[round]);
  }

  if (!before.empty()) {
    VP_CUDA(cudaMemcpyAsync(operands.out, before.data(), before.size(), cudaMemcpyDefault, lane));
    VP_CUDA(cudaStreamSynchronize(lane));
  }
  plan.algorithm = candidates.front();
  if (trials.empty()) return;
  for (Trial& trial : trials) std::ranges::sort(trial.ms);
  const float least = std::ranges::min_element(trials, {}, &Trial::median)->median();
  plan.algorithm = std::ranges::find_if(trials, [&](const Trial& trial) {
                     return trial.median() <= least * kGain;
                   })->algorithm;
}

uint32_t* MatrixProducts::tickets(Stream& stream) {
  Buffer& buffer = tickets_[&stream];
  if (buffer.data() == nullptr) {
    buffer = context_.memory().allocate_for_kernels(kTickets * sizeof(uint32_t), "tickets");
    VP_CUDA(cudaMemsetAsync(buffer.data(), 0, buffer.bytes(), handle_of(stream)));
  }
  return reinterpret_cast<uint32_t*>(buffer.data());
}

}  // namespace voltapile::cuda
