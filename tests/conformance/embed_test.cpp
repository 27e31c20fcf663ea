// Pictures to patches, positions, pooling.
#include "rig.hpp"

namespace voltapile::conformance {
namespace {

class Embed : public Conformance {};

TEST_P(Embed, patches_are_normalised_and_ordered_like_a_convolution_kernel) {
  struct Extents {
    int64_t batch, channels, height, width, patch_height, patch_width;
  };
  const double mean[] = {0.485, 0.456, 0.406}, deviation[] = {0.229, 0.224, 0.225};
  for (const Extents& e :
       {Extents{1, 1, 1, 1, 1, 1}, Extents{2, 1, 28, 28, 4, 4}, Extents{2, 3, 12, 20, 3, 5},
        Extents{1, 3, 8, 4, 2, 4}, Extents{2, 3, 48, 64, 16, 16}, Extents{1, 3, 28, 42, 14, 14},
        Extents{1, 1, 66, 1020, 33, 510}, Extents{3, 2, 5, 21, 5, 3}}) {
    const int64_t elements = e.batch * e.channels * e.height * e.width;
    Values pixels(static_cast<size_t>(elements));
    for (size_t i = 0; i < pixels.size(); ++i) pixels[i] = static_cast<double>((i * 37 + 5) % 256);
    const Tensor pictures = given(DType::u8, {e.batch, e.channels, e.height, e.width}, pixels);
    const int64_t down = e.height / e.patch_height, across = e.width / e.patch_width;
    const int64_t columns = e.channels * e.patch_height * e.patch_width;
    const Tensor patches = poisoned(type(), {e.batch * down * across, columns});
    const auto channels = static_cast<size_t>(e.channels);
    kernels().patchify(pictures, {mean, channels}, {deviation, channels}, e.patch_height,
                       e.patch_width, patches, stream());
    Values wanted;
    for (int64_t b = 0; b < e.batch; ++b)
      for (int64_t i = 0; i < down; ++i)
        for (int64_t j = 0; j < across; ++j)
          for (int64_t c = 0; c < e.channels; ++c)
            for (int64_t y = 0; y < e.patch_height; ++y)
              for (int64_t x = 0; x < e.patch_width; ++x)
                wanted.push_back(
                    (pixels[((b * e.channels + c) * e.height + i * e.patch_height + y) * e.width +
                            j * e.patch_width + x] /
                         255 -
                     mean[c]) /
                    deviation[c]);
    expect_near(patches, wanted, "patches");
  }
}

TEST_P(Embed, positions_with_and_without_a_class_token) {
  for (const auto& [batch, patches, columns] :
       {std::array<int64_t, 3>{1, 1, 1}, {3, 6, 5}, {2, 49, 64}, {5, 196, 33}, {19, 9, 1032}})
    for (const bool with_class : {false, true}) {
      const int64_t rows = patches + with_class;
      const Tensor tokens = random(type(), {batch, patches, columns}),
                   token = with_class ? random(type(), {columns}) : Tensor{},
                   position = random(type(), {rows, columns}),
                   out = poisoned(type(), {batch, rows, columns}),
                   dout = random(type(), {batch, rows, columns}),
                   dtokens = poisoned(type(), {batch, patches, columns}),
                   dclass = with_class ? random(acc(), {columns}) : Tensor{},
                   dposition = random(acc(), {rows, columns}),
                   only = poisoned(type(), {batch, patches, columns});
      kernels().add_position(tokens, token, position, out, stream());
      kernels().add_position_backward(dout, dtokens, dclass, dposition, stream());
      kernels().add_position_backward(dout, only, {}, {}, stream());
      Values wanted, tokens_gradient, class_sum = dclass.values, position_sum = dposition.values;
      for (int64_t b = 0; b < batch; ++b)
        for (int64_t t = 0; t < rows; ++t)
          for (int64_t c = 0; c < columns; ++c) {
            const bool is_class = with_class && t == 0;
            const double from =
                is_class ? token[c] : tokens[(b * patches + t - with_class) * columns + c];
            wanted.push_back(from + position[t * columns + c]);
            const double g = dout[(b * rows + t) * columns + c];
            position_sum[t * columns + c] += g;
            if (is_class) class_sum[c] += g;
            else tokens_gradient.push_back(g);
          }
      expect_near(out, wanted, "out");
      expect_equal(dtokens, tokens_gradient, "dtokens");
      expect_equal(only, tokens_gradient, "dtokens alone");
      expect_near(dposition, position_sum, "dposition");
      if (with_class) expect_near(dclass, class_sum, "dclass");
    }
}

TEST_P(Embed, a_token_is_pooled_bit_by_bit) {
  const Tensor x = given(type(), {1, 2, 3}, {-0.0, 3, -1, 5, 6, 7}), y = poisoned(type(), {1, 3});
  kernels().pool(x, false, y, stream());
  expect_equal(y, {0, 3, -1}, "token");
  EXPECT_TRUE(std::signbit(read(y)[0]));
}

TEST_P(Embed, pooling_by_mean_and_by_token) {
  for (const auto& [batch, rows, columns] :
       {std::array<int64_t, 3>{1, 1, 1}, {3, 7, 5}, {2, 50, 64}, {2, 197, 1032}})
    for (const bool mean : {false, true}) {
      const Tensor x = random(type(), {batch, rows, columns}),
                   pooled = poisoned(type(), {batch, columns}),
                   dpooled = random(type(), {batch, columns}),
                   dx = poisoned(type(), {batch, rows, columns});
      kernels().pool(x, mean, pooled, stream());
      kernels().pool_backward(dpooled, mean, dx, stream());
      Values wanted(pooled.view.elements(), 0.0), gradient;
      for (int64_t b = 0; b < batch; ++b)
        for (int64_t t = 0; t < rows; ++t)
          for (int64_t c = 0; c < columns; ++c) {
            const double share = mean ? 1.0 / static_cast<double>(rows) : t == 0 ? 1.0 : 0.0;
            wanted[b * columns + c] += share * x[(b * rows + t) * columns + c];
            gradient.push_back(share * dpooled[b * columns + c]);
          }
      expect_near(pooled, wanted, "pooled");
      expect_near(dx, gradient, "dx");
    }
}

VOLTAPILE_CONFORMANCE(Embed);

}  // namespace
}  // namespace voltapile::conformance
