// Checks that every backend makes before a kernel is enqueued: shapes and types as kernels.hpp
// says. A fault is the program's own (VP_CHECK), and names the operation and the shapes.
#pragma once
#include <initializer_list>
#include <string_view>

#include "voltapile/base/tensor_view.hpp"
#include "voltapile/device/kernels.hpp"

namespace voltapile::shapes {

void expect(std::string_view operation, std::string_view tensor, const TensorView& t, DType type,
            int64_t elements);
// Empty views pass.
void expect_optional(std::string_view operation, std::string_view tensor, const TensorView& t,
                     DType type, int64_t elements);
void expect_dims(std::string_view operation, std::string_view tensor, const TensorView& t,
                 int dims);
bool is_float(DType type);

void linear(std::string_view operation, const TensorView& x, const TensorView& w,
            const TensorView& b, const TensorView& y);
void linear_backward_input(std::string_view operation, const TensorView& dy, const TensorView& w,
                           const TensorView& dx);
void linear_backward_weight(const TensorView& dy, const TensorView& x, const TensorView& dw,
                            const TensorView& db);
void layer_norm(std::string_view operation, const TensorView& x, const TensorView& gamma,
                const TensorView& beta, const TensorView& y, const TensorView& mean,
                const TensorView& rstd);
void layer_norm_backward(const TensorView& dy, const TensorView& x, const TensorView& gamma,
                         const TensorView& mean, const TensorView& rstd, const TensorView& residual,
                         const TensorView& dx, const TensorView& dgamma, const TensorView& dbeta);
void residual(std::string_view operation, const TensorView& x, const TensorView& branch,
              const TensorView& bias, const TensorView& scale, const DropPath& drop,
              const TensorView& y);
void residual_backward(const TensorView& dy, const TensorView& branch, const TensorView& bias,
                       const TensorView& scale, const DropPath& drop, const TensorView& dbranch,
                       const TensorView& dbias, const TensorView& dscale);
void attention(const TensorView& qkv, const TensorView& lengths, const TensorView& out,
               const TensorView& lse);
void attention_backward(const TensorView& dout, const TensorView& qkv, const TensorView& lengths,
                        const TensorView& out, const TensorView& lse, const TensorView& dqkv);
void qk_norm(std::string_view operation, const TensorView& qkv, const TensorView& gamma_q,
             const TensorView& gamma_k, const TensorView& out, const TensorView& stats);
void qk_norm_sums(const TensorView& qkv, const TensorView& dgamma_q, const TensorView& dbeta_q,
                  const TensorView& dgamma_k, const TensorView& dbeta_k);
void patchify(const TensorView& pictures, size_t means, size_t stds, int64_t patch_height,
              int64_t patch_width, const TensorView& patches);
void add_position(const TensorView& tokens, const TensorView& class_token,
                  const TensorView& position, const TensorView& out);
void add_position_backward(const TensorView& dout, const TensorView& dtokens,
                           const TensorView& dclass, const TensorView& dposition);
void pool(std::string_view operation, const TensorView& x, const TensorView& pooled);
void logits_max(const TensorView& logits, const TensorView& max);
void cross_entropy(std::string_view operation, const TensorView& logits, const Targets& targets,
                   const TensorView& max, const TensorView& sums);
void sum_squares(std::string_view operation, const TensorView& slots, const TensorView& first_bad);
void adamw(const TensorView& gradients, const TensorView& master, const TensorView& m,
           const TensorView& v, const TensorView& weights);
void average(const TensorView& x, const TensorView& average);
void quantise(std::string_view operation, const TensorView& numbers, const TensorView& codes,
              const TensorView& scales);
void rounding(const Rounding& rounding);
void dropout(const TensorView& x, const Dropout& drop, const TensorView& y);

}  // namespace voltapile::shapes
