// Matrix products of the GPU, by cuBLASLt: descriptors are made once a shape, and the algorithm is
// the fastest of those that the library proposes, timed at the shape's first use.
#pragma once
#include <compare>
#include <map>
#include <memory>

#include <cublasLt.h>

#include "context.hpp"

namespace voltapile::cuda {

class TuningFile;  // tuning.hpp

// How a factor lies in memory, row after row: as the product takes it, or transposed.
enum class Layout : uint8_t { plain, transposed };
enum class Into : uint8_t { overwrite, accumulate };

// out (rows, columns) = left (rows, inner) right (inner, columns) [+ bias (columns)] [+ out],
// summed in f32 and rounded once. `factors` is the type of left, right and bias; `result` that of
// out: the same, or f32. The bias is an operand of products that overwrite a result of the factors'
// type.
struct Product {
  DType factors = DType::f32, result = DType::f32;
  Layout left = Layout::plain, right = Layout::plain;
  Into into = Into::overwrite;
  int64_t rows = 0, columns = 0, inner = 0;
  auto operator<=>(const Product&) const = default;
};
struct Operands {
  const void* left = nullptr;
  const void* right = nullptr;
  const void* bias = nullptr;  // null for none
  void* out = nullptr;         // overlaps no other operand
};

class MatrixProducts {
 public:
  explicit MatrixProducts(Context& context);
  ~MatrixProducts();
  MatrixProducts(const MatrixProducts&) = delete;
  MatrixProducts& operator=(const MatrixProducts&) = delete;

  // Enqueues the product; nothing happens where out has no elements. The first call of a shape
  // waits for the stream and times the algorithms on the operands (out is as before where the
  // product adds to it). A stream that is being captured cannot be waited for: a shape first met
  // there takes the algorithm that was kept in the tuning file, or the library's first proposal.
  // Only algorithms that give the same bits at every run are taken, and only those that give the
  // bits of the first proposal, on the operands at hand: timing decides how long a product takes,
  // and never what it gives. Where the library has no algorithm, plain_product takes its place,
  // with a warning.
  void multiply(const Product& product, const Operands& operands, Stream& stream);

  // Counters of the lane for kernels whose last block finishes the work of all: kTickets zeros,
  // which a kernel leaves as zeros. Allocated at the lane's first use.
  static constexpr int64_t kTickets = 4096;
  uint32_t* tickets(Stream& stream);

 private:
  struct Key;
  struct Plan;
  struct Plans;
  Plan& plan_of(const Key& key, const Operands& operands, Stream& stream);
  void choose(Plan& plan, const Key& key, const Operands& operands, Stream& stream);
  // Times the candidates, and leaves the fastest in the plan.
  void time(const std::vector<cublasLtMatmulAlgo_t>& candidates, Plan& plan,
            const Operands& operands, Stream& stream) const;
  cublasStatus_t enqueue(Plan& plan, const Operands& operands, Stream& stream) const;

  Context& context_;
  cublasLtHandle_t handle_ = nullptr;
  std::unique_ptr<TuningFile> choices_;
  std::unique_ptr<Plans> plans_;
  std::map<const Stream*, Buffer> tickets_;
};

// The same by a kernel of our own, far from the GPU's rate: for what cuBLASLt has no algorithm for.
void plain_product(const Product& product, const Operands& operands, cudaStream_t stream);

// *sum += a number that tells the contents of memory apart (an even number of bytes); on the
// device, and the same whatever the order of the work.
void add_checksum(const void* data, int64_t bytes, uint64_t* sum, cudaStream_t stream);

}  // namespace voltapile::cuda
