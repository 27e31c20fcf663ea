// One pre-norm transformer block, divided over the tensor axis:
//
//   y = x + drop(ls1 * (attention(norm1(x) Wqkv^T + bqkv) Wproj^T + bproj))
//   out = y + drop(ls2 * (gelu(norm2(y) Wfc1^T + bfc1) Wfc2^T + bfc2))
//
// qkv and fc1 are divided by columns (whole heads), proj and fc2 by rows; their summands are added
// over the axis, and the bias after that. With sequence parallelism, what lies between the products
// (norms, residuals) holds R = B*T/tp rows, gathered before and scattered after them.
//
// B samples, T tokens, R own rows, C dim, D head dim, H local heads, c = H*D, m local mlp.
#pragma once
#include "layer_context.hpp"
#include "layer_tables.hpp"

namespace voltapile {

struct BlockParameters {                // views of weights, or of gradients
  TensorView norm1_weight, norm1_bias;  // (C)
  TensorView qkv_weight, qkv_bias;      // (3c, C), (3c)
  TensorView q_norm_weight, q_norm_bias, k_norm_weight, k_norm_bias;  // (D)
  TensorView proj_weight, proj_bias;                                  // (C, c), (C)
  TensorView scale1;                                                  // (C) LayerScale
  TensorView norm2_weight, norm2_bias;                                // (C)
  TensorView fc1_weight, fc1_bias;                                    // (m, C), (m)
  TensorView fc2_weight, fc2_bias;                                    // (C, m), (C)
  TensorView scale2;                                                  // (C) LayerScale
};

// From forward to backward. Empty views are what the lists leave out: rebuilt, or not needed.
struct BlockSaved {
  TensorView norm1, mean1, rstd1;   // (R, C), (R), (R); norm1 empty: selective
  TensorView qkv;                   // (B*T, 3c)
  TensorView qkv_normed, qk_stats;  // (B*T, 3c), (B*T, 2, H, 2); qkv_normed empty: selective
  TensorView attention, lse;        // (B*T, c), (B, H, T); rebuild_attention: in workspace
  TensorView branch1;               // (R, C) with LayerScale, before it
  TensorView middle;                // (R, C) y
  TensorView norm2, mean2, rstd2;   // (R, C), (R), (R); norm2 empty: selective
  TensorView fc1, gelu;             // (B*T, m) before and after GELU; gelu empty: selective
  TensorView branch2;               // (R, C) with LayerScale, before it
};

// From backward_input to backward_weight: gradients of the products' outputs, and with
// recomputation the products' inputs.
struct BlockDeferred {
  TensorView branch1_gradient, qkv_gradient;  // (R, C), (B*T, 3c)
  TensorView branch2_gradient, fc1_gradient;  // (R, C), (B*T, m)
  TensorView norm1, attention, norm2, gelu;   // as in BlockSaved
};

struct BlockWorkspace {
  TensorView gathered;         // (B*T, C) with sequence parallelism
  TensorView product;          // (B*T, C) summands of a divided product
  TensorView norm;             // (R, C) selective
  TensorView qkv_normed;       // (B*T, 3c) selective, with QK-norm
  TensorView gelu;             // (B*T, m) selective
  TensorView branch_gradient;  // (R, C)
  TensorView inner_gradient;   // (B*T * max(3c, m))
};

class Block {
 public:
  Block(const LayerContext& context, int block, LayerTables tables);

  // x (R, C). Writes `out` (R, C), which may be the memory of x, and the saved tensors. Without
  // `out` only the saved tensors are rebuilt, and the last product is skipped unless they hold its
  // output.
  void forward(const LayerMemory&, const MicroStep&, const TensorView& x,
               const TensorView& out) const;
  // dout (R, C) is the gradient of the output; dx (R, C), that of x, may be its memory. For
  // Gradients::weight both may be empty, and x, which is what forward was given, is read only with
  // selective recomputation.
  void backward(Gradients, const LayerMemory&, const MicroStep&, const TensorView& x,
                const TensorView& dout, const TensorView& dx) const;

 private:
  struct Views {
    BlockParameters weights, gradients;
    BlockSaved saved;
    BlockDeferred deferred;
    BlockWorkspace workspace;
    TensorView x;
  };
  enum class Branch { attention = 0, mlp = 1 };

  Views bind(const LayerMemory&, const TensorView& x) const;
  DropPath drop_path(const MicroStep&, Branch) const;
  // (B*T, 3c), (B*T, c) as the attention kernels want them.
  TensorView as_qkv(const TensorView& matrix) const;
  TensorView as_heads(const TensorView& matrix) const;

  TensorView attention_branch(const Views&) const;
  TensorView mlp_branch(const Views&) const;
  TensorView qk_normed(const Views&) const;
  void attention_backward(Gradients, const Views&, const MicroStep&, const TensorView& dmiddle,
                          const TensorView& dx) const;
  void mlp_backward(Gradients, const Views&, const MicroStep&, const TensorView& dout,
                    const TensorView& dmiddle) const;
  void attention_core_backward(const Views&, const TensorView& dattention,
                               const TensorView& dqkv) const;
  void keep_linear_inputs(const Views&) const;

  const LayerContext* context_;
  LayerTables tables_;
  int block_;
  double drop_rate_ = 0;
  int64_t local_heads_;
};

}  // namespace voltapile
