#include <array>

#include "workbench.hpp"

namespace voltapile::bench {
namespace {

constexpr std::array<double, 3> kMean = {0.5, 0.5, 0.5}, kStd = {0.25, 0.25, 0.25};

Case patchify(Workbench& b) {
  const Sizes& s = b.sizes();
  const int64_t patches = (s.image / s.patch) * (s.image / s.patch);
  const TensorView pictures = b.bytes({s.batch, 3, s.image, s.image}),
                   out = b.working({s.batch * patches, 3 * s.patch * s.patch});
  return {"patchify", {s.batch, 3, s.image, s.image}, [=, &b] {
            const int64_t patch = b.sizes().patch;
            b.kernels().patchify(pictures, kMean, kStd, patch, patch, out, b.stream());
          }};
}

// Tokens of the whole batch.
Shape tokens_of(const Sizes& s) { return {s.batch, s.tokens, s.dim}; }
std::vector<int64_t> extents_of(const Sizes& s) { return {s.batch, s.tokens, s.dim}; }

Case add_position(Workbench& b) {
  const Sizes& s = b.sizes();
  const TensorView tokens = b.working(tokens_of(s)), position = b.working({s.tokens, s.dim}),
                   out = b.working(tokens_of(s));
  return {"add_position", extents_of(s),
          [=, &b] { b.kernels().add_position(tokens, {}, position, out, b.stream()); }};
}

Case add_position_backward(Workbench& b) {
  const Sizes& s = b.sizes();
  const TensorView dout = b.working(tokens_of(s)), dtokens = b.working(tokens_of(s)),
                   dposition = b.acc({s.tokens, s.dim});
  return {"add_position_backward", extents_of(s),
          [=, &b] { b.kernels().add_position_backward(dout, dtokens, {}, dposition, b.stream()); }};
}

Case pool(Workbench& b) {
  const Sizes& s = b.sizes();
  const TensorView x = b.working(tokens_of(s)), pooled = b.working({s.batch, s.dim});
  return {"pool", extents_of(s), [=, &b] { b.kernels().pool(x, true, pooled, b.stream()); }};
}

Case pool_backward(Workbench& b) {
  const Sizes& s = b.sizes();
  const TensorView dpooled = b.working({s.batch, s.dim}), dx = b.working(tokens_of(s));
  return {"pool_backward", extents_of(s),
          [=, &b] { b.kernels().pool_backward(dpooled, true, dx, b.stream()); }};
}

struct Loss {
  explicit Loss(Workbench& b)
      : batch(b.sizes().batch),
        classes(b.sizes().classes),
        logits(b.working({batch, classes})),
        max(b.filled(accumulate_type(b.type()), {batch}, 1)),
        sums(b.filled(accumulate_type(b.type()), {batch, 3}, 1)),
        rank(b.filled(accumulate_type(b.type()), {batch}, 0)),
        totals(b.filled(DType::f64, {2}, 0)) {
    targets.labels = b.labels(batch, classes);
    targets.classes = classes;
  }
  std::vector<int64_t> shape() const { return {batch, classes}; }
  int64_t batch, classes;
  TensorView logits, max, sums, rank, totals;
  Targets targets;
};

Case logits_max(Workbench& b) {
  const Loss l(b);
  return {"logits_max", l.shape(),
          [=, &b] { b.kernels().logits_max(l.logits, 0, l.classes, l.max, b.stream()); }};
}
Case cross_entropy_sums(Workbench& b) {
  const Loss l(b);
  return {"cross_entropy_sums", l.shape(), [=, &b] {
            b.kernels().cross_entropy_sums(l.logits, 0, l.targets, l.max, l.sums, b.stream());
          }};
}
Case cross_entropy_loss(Workbench& b) {
  const Loss l(b);
  return {"cross_entropy_loss", {l.batch, 3}, [=, &b] {
            const TensorView total = l.totals.slice_flat(0, 1);
            b.kernels().cross_entropy_loss(l.sums, l.batch, total, b.stream());
          }};
}
Case cross_entropy_backward(Workbench& b) {
  const Loss l(b);
  const TensorView dlogits = b.working({l.batch, l.classes});
  return {"cross_entropy_backward", l.shape(), [=, &b] {
            b.kernels().cross_entropy_backward(l.logits, 0, l.targets, l.max, l.sums, 1, nullptr,
                                               dlogits, b.stream());
          }};
}
Case count_before_label(Workbench& b) {
  const Loss l(b);
  return {"count_before_label", l.shape(), [=, &b] {
            b.kernels().count_before_label(l.logits, 0, l.targets, l.max, l.sums, l.rank,
                                           b.stream());
          }};
}
Case count_correct(Workbench& b) {
  const Loss l(b);
  return {"count_correct", {l.batch}, [=, &b] {
            b.kernels().count_correct(l.rank, l.batch, l.totals, b.stream());
          }};
}

}  // namespace

std::vector<Prepare> ends_cases() {
  return {patchify,
          add_position,
          add_position_backward,
          pool,
          pool_backward,
          logits_max,
          cross_entropy_sums,
          cross_entropy_loss,
          cross_entropy_backward,
          count_before_label,
          count_correct};
}

}  // namespace voltapile::bench
