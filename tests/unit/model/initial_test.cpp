#include <cmath>

#include <gtest/gtest.h>

#include "harness.hpp"

namespace voltapile::test {
namespace {

// The whole tensor, put together from what every tensor rank initialises.
std::vector<double> assembled(const Architecture& a, const Parameter& p, int tp,
                              DType type = DType::f64) {
  const int64_t whole_columns = p.shape.elements() / p.shape[0];
  std::vector<double> whole(static_cast<size_t>(p.shape.elements()), std::nan(""));
  for (int rank = 0; rank < tp; ++rank) {
    const Shape shape = local_shape(p, tp);
    std::vector<double> memory(static_cast<size_t>(shape.elements()), std::nan(""));
    const TensorView local{memory.data(), type, shape};
    initial_values(a, p, 42, tp, rank, 0, local);
    const std::vector<double> values = read_values(local);
    const int64_t local_columns = shape.elements() / shape[0];
    double counted = 0, held = 0;
    for (const Rectangle& r : placement(p, tp, rank)) {
      for (int64_t i = 0; i < r.rows; ++i) {
        for (int64_t j = 0; j < r.columns; ++j) {
          const double value =
              values[static_cast<size_t>((r.local_row + i) * local_columns + r.local_column + j)];
          whole[static_cast<size_t>((r.whole_row + i) * whole_columns + r.whole_column + j)] =
              value;
          counted += std::abs(value);
        }
      }
    }
    for (double value : values) held += std::abs(value);
    EXPECT_NEAR(held, counted, 1e-9) << p.name << ": padding is not zero";
  }
  return whole;
}

Architecture architecture() {
  Deck deck = small_deck();
  deck.model.dim = 32;
  deck.model.heads = 4;
  deck.model.mlp = 64;
  deck.model.classes = 10;
  deck.model.layer_scale = 1e-4;
  deck.model.qk_norm = true;
  return make_architecture(deck);
}

TEST(InitialValues, OfARangeArePartOfTheWhole) {
  const Architecture a = architecture();
  for (const Layer& layer : a.layers) {
    for (const Parameter& p : layer.parameters) {
      for (const int tp : {1, 2, 4}) {
        const int64_t n = local_shape(p, tp).elements();
        std::vector<double> whole(static_cast<size_t>(n)), part(whole.size());
        initial_values(a, p, 42, tp, tp - 1, 0, {whole.data(), DType::f64, {n}});
        for (const int64_t begin : {int64_t{0}, n / 3, n - 1}) {
          for (const int64_t count : {int64_t{0}, int64_t{1}, (n - begin) / 2, n - begin}) {
            part.assign(static_cast<size_t>(count), std::nan(""));
            initial_values(a, p, 42, tp, tp - 1, begin, {part.data(), DType::f64, {count}});
            EXPECT_TRUE(std::equal(part.begin(), part.end(), whole.begin() + begin))
                << p.name << " of " << tp << ": " << count << " from " << begin;
          }
        }
      }
    }
  }
}

TEST(InitialValues, DoNotDependOnTheMesh) {
  const Architecture a = architecture();
  for (const Layer& layer : a.layers) {
    for (const Parameter& p : layer.parameters) {
      const std::vector<double> whole = assembled(a, p, 1);
      EXPECT_EQ(assembled(a, p, 2), whole) << p.name;
      EXPECT_EQ(assembled(a, p, 4), whole) << p.name;
    }
  }
}

TEST(InitialValues, MatricesAreTruncatedNormalAndTheRestIsConstant) {
  const Architecture a = architecture();
  for (const Layer& layer : a.layers) {
    for (const Parameter& p : layer.parameters) {
      const std::vector<double> values = assembled(a, p, 1);
      const auto n = static_cast<double>(values.size());
      double sum = 0, squares = 0, largest = 0;
      for (double value : values) {
        sum += value;
        squares += value * value;
        largest = std::max(largest, std::abs(value));
      }
      if (p.name.ends_with("ls1.gamma") || p.name.ends_with("ls2.gamma")) {
        EXPECT_DOUBLE_EQ(sum, n * 1e-4) << p.name;
      } else if (p.shape.dims() == 1) {
        const bool ones = p.name.find("norm") != std::string::npos && p.name.ends_with("weight");
        EXPECT_EQ(sum, ones ? n : 0) << p.name;
        EXPECT_EQ(squares, sum) << p.name;
      } else {
        // Standard deviation of a normal cut at two sigma: 0.8796 sigma.
        EXPECT_LE(largest, 0.04) << p.name;
        EXPECT_NEAR(sum / n, 0, 5 * 0.0176 / std::sqrt(n)) << p.name;
        EXPECT_NEAR(std::sqrt(squares / n), 0.0176, 5 * 0.0176 / std::sqrt(n)) << p.name;
      }
    }
  }
}

TEST(InitialValues, DoNotDependOnTheThreads) {
  const Architecture a = architecture();
  const Parameter& p = a.layers[1].parameters[2];
  std::vector<double> values(static_cast<size_t>(p.shape.elements()));
  ThreadPool pool(3);
  initial_values(a, p, 42, 1, 0, 0, {values.data(), DType::f64, p.shape}, &pool);
  EXPECT_EQ(values, assembled(a, p, 1));
}

TEST(InitialValues, AreRoundedOnceInSinglePrecision) {
  const Architecture a = architecture();
  const Parameter& p = a.layers[1].parameters[2];
  std::vector<double> rounded = assembled(a, p, 1);
  for (double& value : rounded) value = static_cast<float>(value);
  EXPECT_EQ(assembled(a, p, 1, DType::f32), rounded);
}

TEST(InitialValues, DifferBetweenTensorsAndSeeds) {
  const Architecture a = architecture();
  const Parameter& p = a.layers[1].parameters[2];
  const Parameter& q = a.layers[2].parameters[2];
  ASSERT_EQ(p.shape, q.shape);
  EXPECT_NE(assembled(a, p, 1), assembled(a, q, 1));
  std::vector<double> other(static_cast<size_t>(p.shape.elements()));
  initial_values(a, p, 43, 1, 0, 0, {other.data(), DType::f64, p.shape});
  EXPECT_NE(other, assembled(a, p, 1));
}

// The table of MoCo v3 and MAE: sin and cos of x over falling frequencies, then of y.
TEST(SinePosition, HoldsTheGridPlacesOfPatches) {
  Deck deck = small_deck();
  deck.model.position = Position::sine2d;
  deck.model.pool = Pool::token;
  deck.model.image = {8, 12};  // a grid of 2 x 3
  const Architecture a = make_architecture(deck);
  const Parameter& p = a.layers[0].parameters[1];
  ASSERT_EQ(p.name, "pos_embed");
  EXPECT_FALSE(p.trained);
  const std::vector<double> table = assembled(a, p, 1);
  for (size_t i = 0; i < 8; ++i) EXPECT_EQ(table[i], 0) << "class token, column " << i;
  for (int patch = 0; patch < 6; ++patch) {
    const double x = patch % 3, y = patch / 3;
    const std::vector<double> row{std::sin(x), std::sin(x / 100), std::cos(x), std::cos(x / 100),
                                  std::sin(y), std::sin(y / 100), std::cos(y), std::cos(y / 100)};
    for (size_t i = 0; i < 8; ++i)
      EXPECT_DOUBLE_EQ(table[static_cast<size_t>(patch + 1) * 8 + i], row[i]) << patch << ", " << i;
  }
}

TEST(SinePosition, RefusesAWidthThatFourDoesNotDivide) {
  Deck deck = small_deck();
  deck.model.position = Position::sine2d;
  deck.model.dim = 6;
  const Architecture a = make_architecture(deck);
  const Parameter& p = a.layers[0].parameters[0];
  std::vector<double> memory(static_cast<size_t>(p.shape.elements()));
  try {
    initial_values(a, p, 1, 1, 0, 0, {memory.data(), DType::f64, p.shape});
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::bad_input);
    EXPECT_NE(std::string(error.what()).find("model.dim = 6"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace voltapile::test
