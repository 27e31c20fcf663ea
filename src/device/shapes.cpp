#include "voltapile/device/shapes.hpp"

namespace voltapile::shapes {

bool is_float(DType type) {
  return type == DType::f16 || type == DType::bf16 || type == DType::f32 || type == DType::f64;
}

void expect(std::string_view operation, std::string_view tensor, const TensorView& t, DType type,
            int64_t elements) {
  VP_CHECK(t, "{}: {} is missing", operation, tensor);
  VP_CHECK(t.dtype == type && t.elements() == elements,
           "{}: {} is {} {}, expected {} elements of {}", operation, tensor, name_of(t.dtype),
           t.shape.text(), elements, name_of(type));
}

void expect_optional(std::string_view operation, std::string_view tensor, const TensorView& t,
                     DType type, int64_t elements) {
  if (t) expect(operation, tensor, t, type, elements);
}

void expect_dims(std::string_view operation, std::string_view tensor, const TensorView& t,
                 int dims) {
  VP_CHECK(t, "{}: {} is missing", operation, tensor);
  VP_CHECK(t.shape.dims() == dims && is_float(t.dtype),
           "{}: {} is {} {}, expected {} dims of floats", operation, tensor, name_of(t.dtype),
           t.shape.text(), dims);
}

namespace {
// rows and columns of the matrix view
void expect_matrix(std::string_view operation, std::string_view tensor, const TensorView& t,
                   DType type, int64_t rows, int64_t columns) {
  VP_CHECK(t, "{}: {} is missing", operation, tensor);
  VP_CHECK(t.dtype == type && is_float(type) && t.columns() == columns && t.rows() == rows,
           "{}: {} is {} {}, expected ({}, {}) of {}", operation, tensor, name_of(t.dtype),
           t.shape.text(), rows, columns, name_of(type));
}
void expect_drop(std::string_view operation, const DropPath& drop) {
  VP_CHECK(drop.rate >= 0 && drop.rate < 1, "{}: drop path rate {}", operation, drop.rate);
  VP_CHECK(drop.rate == 0 || drop.state, "{}: drop path needs the step's state", operation);
  VP_CHECK(drop.rows_per_sample >= 1, "{}: {} rows per sample", operation, drop.rows_per_sample);
}
}  // namespace

void linear(std::string_view operation, const TensorView& x, const TensorView& w,
            const TensorView& b, const TensorView& y) {
  expect_dims(operation, "w", w, 2);
  expect_matrix(operation, "x", x, w.dtype, x.rows(), w.shape[1]);
  expect_matrix(operation, "y", y, w.dtype, x.rows(), w.shape[0]);
  expect_optional(operation, "b", b, w.dtype, w.shape[0]);
}

void linear_backward_input(std::string_view operation, const TensorView& dy, const TensorView& w,
                           const TensorView& dx) {
  expect_dims(operation, "w", w, 2);
  expect_matrix(operation, "dy", dy, w.dtype, dy.rows(), w.shape[0]);
  expect_matrix(operation, "dx", dx, w.dtype, dy.rows(), w.shape[1]);
}

void linear_backward_weight(const TensorView& dy, const TensorView& x, const TensorView& dw,
                            const TensorView& db) {
  const std::string_view operation = "linear_backward_weight";
  expect_matrix(operation, "dy", dy, x.dtype, x.rows(), dy.columns());
  expect_matrix(operation, "dw", dw, accumulate_type(x.dtype), dy.columns(), x.columns());
  expect_optional(operation, "db", db, accumulate_type(x.dtype), dy.columns());
}

void layer_norm(std::string_view operation, const TensorView& x, const TensorView& gamma,
                const TensorView& beta, const TensorView& y, const TensorView& mean,
                const TensorView& rstd) {
  const DType acc = accumulate_type(x.dtype);
  expect_matrix(operation, "y", y, x.dtype, x.rows(), x.columns());
  expect(operation, "gamma", gamma, x.dtype, x.columns());
  expect(operation, "beta", beta, x.dtype, x.columns());
  expect(operation, "mean", mean, acc, x.rows());
  expect(operation, "rstd", rstd, acc, x.rows());
}

void layer_norm_backward(const TensorView& dy, const TensorView& x, const TensorView& gamma,
                         const TensorView& mean, const TensorView& rstd, const TensorView& residual,
                         const TensorView& dx, const TensorView& dgamma, const TensorView& dbeta) {
  const std::string_view operation = "layer_norm_backward";
  const DType acc = accumulate_type(x.dtype);
  expect_matrix(operation, "dy", dy, x.dtype, x.rows(), x.columns());
  expect_matrix(operation, "dx", dx, x.dtype, x.rows(), x.columns());
  expect_optional(operation, "residual", residual, x.dtype, x.elements());
  expect(operation, "gamma", gamma, x.dtype, x.columns());
  expect(operation, "mean", mean, acc, x.rows());
  expect(operation, "rstd", rstd, acc, x.rows());
  expect_optional(operation, "dgamma", dgamma, acc, x.columns());
  expect_optional(operation, "dbeta", dbeta, acc, x.columns());
}

void residual(std::string_view operation, const TensorView& x, const TensorView& branch,
              const TensorView& bias, const TensorView& scale, const DropPath& drop,
              const TensorView& y) {
  expect_matrix(operation, "branch", branch, x.dtype, x.rows(), x.columns());
  expect_matrix(operation, "y", y, x.dtype, x.rows(), x.columns());
  expect_optional(operation, "bias", bias, x.dtype, x.columns());
  expect_optional(operation, "scale", scale, x.dtype, x.columns());
  expect_drop(operation, drop);
}

void residual_backward(const TensorView& dy, const TensorView& branch, const TensorView& bias,
                       const TensorView& scale, const DropPath& drop, const TensorView& dbranch,
                       const TensorView& dbias, const TensorView& dscale) {
  const std::string_view operation = "residual_backward";
  const DType acc = accumulate_type(dy.dtype);
  if (dscale) expect_matrix(operation, "branch", branch, dy.dtype, dy.rows(), dy.columns());
  expect_optional(operation, "bias", bias, dy.dtype, dy.columns());
  expect_optional(operation, "scale", scale, dy.dtype, dy.columns());
  expect_optional(operation, "dbranch", dbranch, dy.dtype, dy.elements());
  expect_optional(operation, "dbias", dbias, acc, dy.columns());
  expect_optional(operation, "dscale", dscale, acc, dy.columns());
  expect_drop(operation, drop);
}

namespace {
void expect_attention(std::string_view operation, const TensorView& qkv, const TensorView& lengths,
                      const TensorView& out, const TensorView& lse) {
  expect_dims(operation, "qkv", qkv, 5);
  VP_CHECK(qkv.shape[2] == 3, "{}: qkv is {}, expected (B, T, 3, H, D)", operation,
           qkv.shape.text());
  expect_optional(operation, "lengths", lengths, DType::i32, qkv.shape[0]);
  expect(operation, "out", out, qkv.dtype, qkv.elements() / 3);
  expect(operation, "lse", lse, accumulate_type(qkv.dtype),
         qkv.shape[0] * qkv.shape[1] * qkv.shape[3]);
}
}  // namespace

void attention(const TensorView& qkv, const TensorView& lengths, const TensorView& out,
               const TensorView& lse) {
  expect_attention("attention", qkv, lengths, out, lse);
}

void attention_backward(const TensorView& dout, const TensorView& qkv, const TensorView& lengths,
                        const TensorView& out, const TensorView& lse, const TensorView& dqkv) {
  const std::string_view operation = "attention_backward";
  expect_attention(operation, qkv, lengths, out, lse);
  expect(operation, "dout", dout, qkv.dtype, out.elements());
  expect(operation, "dqkv", dqkv, qkv.dtype, qkv.elements());
}

void qk_norm(std::string_view operation, const TensorView& qkv, const TensorView& gamma_q,
             const TensorView& gamma_k, const TensorView& out, const TensorView& stats) {
  expect_dims(operation, "qkv", qkv, 5);
  VP_CHECK(qkv.shape[2] == 3, "{}: qkv is {}, expected (B, T, 3, H, D)", operation,
           qkv.shape.text());
  expect(operation, "gamma_q", gamma_q, qkv.dtype, qkv.shape[4]);
  expect(operation, "gamma_k", gamma_k, qkv.dtype, qkv.shape[4]);
  expect(operation, "out", out, qkv.dtype, qkv.elements());
  expect(operation, "stats", stats, accumulate_type(qkv.dtype),
         qkv.shape[0] * qkv.shape[1] * qkv.shape[3] * 4);
}

void qk_norm_sums(const TensorView& qkv, const TensorView& dgamma_q, const TensorView& dbeta_q,
                  const TensorView& dgamma_k, const TensorView& dbeta_k) {
  const std::string_view operation = "qk_norm_backward";
  const DType acc = accumulate_type(qkv.dtype);
  const int given = int(bool(dgamma_q)) + bool(dbeta_q) + bool(dgamma_k) + bool(dbeta_k);
  VP_CHECK(given == 0 || given == 4, "{}: {} of the 4 parameter gradients given", operation, given);
  expect_optional(operation, "dgamma_q", dgamma_q, acc, qkv.shape[4]);
  expect_optional(operation, "dbeta_q", dbeta_q, acc, qkv.shape[4]);
  expect_optional(operation, "dgamma_k", dgamma_k, acc, qkv.shape[4]);
  expect_optional(operation, "dbeta_k", dbeta_k, acc, qkv.shape[4]);
}

void patchify(const TensorView& pictures, size_t means, size_t stds, int64_t patch_height,
              int64_t patch_width, const TensorView& patches) {
  VP_CHECK(pictures && pictures.dtype == DType::u8 && pictures.shape.dims() == 4,
           "patchify: pictures are {} {}, expected (B, C, H, W) of u8", name_of(pictures.dtype),
           pictures.shape.text());
  const auto channels = static_cast<size_t>(pictures.shape[1]);
  VP_CHECK(means == channels && stds == channels, "patchify: {} means and {} deviations for {}",
           means, stds, pictures.shape.text());
  VP_CHECK(patch_height > 0 && patch_width > 0 && pictures.shape[2] % patch_height == 0 &&
               pictures.shape[3] % patch_width == 0,
           "patchify: patches of {}x{} do not divide {}", patch_height, patch_width,
           pictures.shape.text());
  VP_CHECK(patches && is_float(patches.dtype) && patches.elements() == pictures.elements(),
           "patchify: patches are {} {} for {}", name_of(patches.dtype), patches.shape.text(),
           pictures.shape.text());
}

void add_position(const TensorView& tokens, const TensorView& class_token,
                  const TensorView& position, const TensorView& out) {
  const std::string_view operation = "add_position";
  expect_dims(operation, "tokens", tokens, 3);
  const int64_t batch = tokens.shape[0], columns = tokens.shape[2];
  const int64_t rows = tokens.shape[1] + (class_token ? 1 : 0);
  expect_optional(operation, "class_token", class_token, tokens.dtype, columns);
  expect(operation, "position", position, tokens.dtype, rows * columns);
  expect(operation, "out", out, tokens.dtype, batch * rows * columns);
}

void add_position_backward(const TensorView& dout, const TensorView& dtokens,
                           const TensorView& dclass, const TensorView& dposition) {
  const std::string_view operation = "add_position_backward";
  expect_dims(operation, "dout", dout, 3);
  const DType acc = accumulate_type(dout.dtype);
  const int64_t batch = dout.shape[0], rows = dout.shape[1], columns = dout.shape[2];
  if (dtokens) {
    expect_dims(operation, "dtokens", dtokens, 3);
    VP_CHECK(dtokens.dtype == dout.dtype && dtokens.shape[0] == batch &&
                 dtokens.shape[2] == columns &&
                 (dtokens.shape[1] == rows - 1 || (dtokens.shape[1] == rows && !dclass)),
             "{}: dtokens is {} for dout {}", operation, dtokens.shape.text(), dout.shape.text());
  }
  expect_optional(operation, "dclass", dclass, acc, columns);
  expect_optional(operation, "dposition", dposition, acc, rows * columns);
}

void pool(std::string_view operation, const TensorView& x, const TensorView& pooled) {
  expect_dims(operation, "x", x, 3);
  expect_matrix(operation, "pooled", pooled, x.dtype, x.shape[0], x.shape[2]);
}

void logits_max(const TensorView& logits, const TensorView& max) {
  expect_dims("logits_max", "logits", logits, 2);
  expect("logits_max", "max", max, accumulate_type(logits.dtype), logits.rows());
}

void cross_entropy(std::string_view operation, const TensorView& logits, const Targets& targets,
                   const TensorView& max, const TensorView& sums) {
  expect_dims(operation, "logits", logits, 2);
  VP_CHECK(targets.classes >= 1, "{}: {} classes", operation, targets.classes);
  if (targets.probabilities)
    expect_matrix(operation, "probabilities", targets.probabilities, DType::f32, logits.rows(),
                  targets.classes);
  else expect(operation, "labels", targets.labels, DType::i32, logits.rows());
  const DType acc = accumulate_type(logits.dtype);
  expect(operation, "max", max, acc, logits.rows());
  expect(operation, "sums", sums, acc, 3 * logits.rows());
}

void sum_squares(std::string_view operation, const TensorView& slots, const TensorView& first_bad) {
  expect(operation, "slots", slots, DType::f64, NormSlots::count);
  expect(operation, "first_bad", first_bad, DType::i32, 1);
}

void adamw(const TensorView& gradients, const TensorView& master, const TensorView& m,
           const TensorView& v, const TensorView& weights) {
  const int64_t n = master.elements();
  const DType acc = accumulate_type(weights.dtype);
  VP_CHECK(is_float(gradients.dtype), "adamw: gradients of {}", name_of(gradients.dtype));
  expect("adamw", "gradients", gradients, gradients.dtype, n);
  expect("adamw", "master", master, acc, n);
  expect("adamw", "m", m, acc, n);
  expect("adamw", "v", v, acc, n);
  expect("adamw", "weights", weights, weights.dtype, n);
}

void average(const TensorView& x, const TensorView& average) {
  VP_CHECK(x.dtype == DType::f32 || x.dtype == DType::f64, "average: x of {}", name_of(x.dtype));
  expect("average", "average", average, x.dtype, x.elements());
}

void quantise(std::string_view operation, const TensorView& numbers, const TensorView& codes,
              const TensorView& scales) {
  VP_CHECK(numbers && is_float(numbers.dtype), "{}: numbers are {} {}", operation,
           name_of(numbers.dtype), numbers.shape.text());
  const int64_t n = numbers.elements();
  expect(operation, "codes", codes, DType::u8, n);
  expect(operation, "scales", scales, DType::f32, (n + kQuantiseBlock - 1) / kQuantiseBlock);
}

void rounding(const Rounding& rounding) {
  VP_CHECK(0 <= rounding.first_index && rounding.first_index < int64_t{1} << 40 &&
               rounding.first_index % kQuantiseBlock == 0,
           "quantise_8bit: first index {} does not begin a block", rounding.first_index);
}

void dropout(const TensorView& x, const Dropout& drop, const TensorView& y) {
  expect_matrix("dropout", "y", y, x.dtype, x.rows(), x.columns());
  VP_CHECK(drop.rate >= 0 && drop.rate < 1, "dropout: rate {}", drop.rate);
  VP_CHECK(drop.rate == 0 || drop.state, "dropout needs the step's state");
  VP_CHECK(drop.rows_per_sample >= 1, "dropout: {} rows per sample", drop.rows_per_sample);
  VP_CHECK(drop.row_columns == 0
               ? drop.column_offset == 0
               : drop.column_offset >= 0 && drop.column_offset + x.columns() <= drop.row_columns,
           "dropout: columns {}:{} of {}", drop.column_offset, drop.column_offset + x.columns(),
           drop.row_columns);
}

}  // namespace voltapile::shapes
