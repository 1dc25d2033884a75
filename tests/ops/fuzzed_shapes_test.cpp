// SPDX-License-Identifier: Apache-2.0
// Every fused op on random shapes, masks and options, value and gradients, against LibTorch's ops
// in double. FLEET_FUZZ_SHAPES=10000 tries more than a test has time for.
#include <cmath>
#include <cstdlib>

#include <gtest/gtest.h>

#include "fleet/core/text/format.h"
#include "fleet/ops/add_norm.h"
#include "fleet/ops/batch_norm_relu.h"
#include "fleet/ops/bias_gelu.h"
#include "fleet/ops/cross_entropy.h"
#include "fleet/ops/dropout.h"
#include "fleet/ops/linear_cross_entropy.h"
#include "fleet/ops/rotary.h"
#include "fleet/ops/swiglu.h"
#include "fleet/ops/tiled_attention.h"

#include "tests/ops/agreement.h"

namespace fleet::ops {
namespace {

using testing::kCounter;
using testing::Tensors;
using torch::Tensor;
using Sizes = std::vector<int64_t>;

int64_t fuzzed_shapes() {
  const char* const wish = std::getenv("FLEET_FUZZ_SHAPES");
  return wish != nullptr ? std::atoll(wish) : 60;
}

/// What one case draws: the same for the same number.
class Draw {
 public:
  explicit Draw(int64_t seed)
      : generator_(at::detail::createCPUGenerator(static_cast<uint64_t>(seed))) {}

  int64_t between(int64_t least, int64_t most) {
    return torch::randint(least, most + 1, {1}, generator_, torch::kLong).item<int64_t>();
  }
  bool coin() { return between(0, 1) == 1; }
  double probability() { return coin() ? 0.0 : static_cast<double>(between(0, 9)) / 10; }
  Tensor numbers(const Sizes& sizes) { return torch::randn(sizes, generator_, torch::kDouble); }
  /// Up to three dimensions before one of `width`; one in twenty is empty.
  Sizes sizes(int64_t width) {
    Sizes result;
    for (int64_t i = between(1, 3); i > 0; --i) {
      result.push_back(between(0, 19) == 0 ? 0 : between(1, 5));
    }
    result.push_back(width);
    return result;
  }
  /// As it is, or the same numbers with other strides.
  Tensor laid_out(const Tensor& x) {
    if (x.dim() < 2 || coin()) return x;
    const int64_t one = between(0, x.dim() - 1), other = between(0, x.dim() - 1);
    return x.transpose(one, other).contiguous().transpose(one, other);
  }
  at::Generator& generator() { return generator_; }

 private:
  at::Generator generator_;
};

/// In float to `tolerance`, or in bfloat16 to `low_tolerance`.
void expect_agreement(Draw& draw, const std::function<Tensor(const Tensors&)>& op,
                      Tensors arguments, double tolerance, double low_tolerance,
                      bool cancels = false) {
  for (auto& x : arguments) x = draw.laid_out(x);
  const bool is_low = draw.coin();
  SCOPED_TRACE(is_low ? "bfloat16" : "float");
  testing::expect_agreement(op, arguments, is_low ? low_tolerance : tolerance,
                            is_low ? torch::kBFloat16 : torch::kFloat, cancels || is_low);
}

void fuzz(const std::function<void(Draw&)>& one, int64_t first) {
  for (int64_t i = 0; i < fuzzed_shapes(); ++i) {
    SCOPED_TRACE(format("case {}", first + i));
    Draw draw(first + i);
    one(draw);
    if (::testing::Test::HasFailure()) return;
  }
}

TEST(FuzzedShapesTest, Dropout) {
  fuzz(
      [](Draw& draw) {
        const double p = draw.probability();
        expect_agreement(
            draw, [&](const Tensors& x) { return dropout(x[0], p, kCounter); },
            {draw.numbers(draw.sizes(draw.between(1, 200)))}, 1e-6, 1e-2);
      },
      1000000);
}

TEST(FuzzedShapesTest, AddNorm) {
  fuzz(
      [](Draw& draw) {
        const int64_t width = draw.between(3, 300);
        const auto sizes = draw.sizes(width);
        const AddNormOptions options{.dropout = std::min(draw.probability(), 0.5),
                                     .eps = 1e-3,
                                     .rms = draw.coin(),
                                     .counter = kCounter,
                                     .save_sum = draw.coin()};
        const auto op = [&](const Tensors& x) { return add_norm(x[0], x[1], x[2], x[3], options); };
        expect_agreement(draw, op,
                         {draw.numbers(sizes), draw.numbers(sizes), draw.numbers({width}),
                          draw.numbers({width})},
                         1e-4, 8e-2);
      },
      2000000);
}

TEST(FuzzedShapesTest, BiasGelu) {
  fuzz(
      [](Draw& draw) {
        const int64_t width = draw.between(1, 300);
        const BiasGeluOptions options{
            .dropout = draw.probability(), .tanh = draw.coin(), .counter = kCounter};
        expect_agreement(
            draw, [&](const Tensors& x) { return bias_gelu(x[0], x[1], options); },
            {draw.numbers(draw.sizes(width)) * 3, draw.numbers({width})}, 1e-5, 2e-2,
            /*cancels=*/true);
      },
      3000000);
}

TEST(FuzzedShapesTest, Attention) {
  fuzz(
      [](Draw& draw) {
        const int64_t samples = draw.between(1, 3), kv_heads = draw.between(1, 3),
                      heads = kv_heads * draw.between(1, 3), queries = draw.between(1, 150),
                      keys = draw.between(2, 150), width = draw.between(2, 70);
        TiledAttentionOptions options{.causal = draw.coin(),
                                      .dropout = std::min(draw.probability(), 0.6),
                                      .counter = kCounter};
        if (draw.coin()) {
          options.keys = torch::rand({samples, keys}, draw.generator()).lt(0.7);
          options.keys.select(1, 0).fill_(true);  // so that every query sees one
        }
        Tensor bias;
        if (draw.coin()) {
          bias = draw.numbers(draw.coin() ? Sizes{samples, heads, queries, keys}
                                          : Sizes{queries, keys});
        }
        const auto op = [&](const Tensors& x) {
          auto own = options;
          if (bias.defined()) own.bias = bias.to(x[0].scalar_type());
          return tiled_attention(x[0], x[1], x[2], own);
        };
        expect_agreement(draw, op,
                         {draw.numbers({samples, queries, heads, width}),
                          draw.numbers({samples, keys, kv_heads, width}),
                          draw.numbers({samples, keys, kv_heads, width})},
                         2e-5, 3e-2, /*cancels=*/true);
      },
      4000000);
}

TEST(FuzzedShapesTest, LinearCrossEntropy) {
  fuzz(
      [](Draw& draw) {
        const int64_t rows = draw.between(1, 40), width = draw.between(1, 30),
                      classes = draw.between(2, 400);
        const auto labels = torch::randint(0, classes, {rows}, draw.generator(), torch::kLong);
        if (draw.coin()) labels[0] = -100;
        const LinearCrossEntropyOptions options{.label_smoothing = draw.coin() ? 0.1 : 0.0,
                                                .chunk_rows = draw.between(0, 20)};
        testing::expect_agreement(
            [&](const Tensors& x) {
              return linear_cross_entropy(x[0], x[1], x[2], labels, options);
            },
            {draw.numbers({rows, width}), draw.numbers({classes, width}), draw.numbers({classes})},
            2e-5);
      },
      5000000);
}

TEST(FuzzedShapesTest, CrossEntropy) {
  using Reduction = CrossEntropyOptions::Reduction;
  fuzz(
      [](Draw& draw) {
        const int64_t rows = draw.between(1, 12), classes = draw.between(2, 500);
        const auto labels = torch::randint(0, classes, {rows}, draw.generator(), torch::kLong);
        if (rows > 1 && draw.coin()) labels[0] = -100;
        const Reduction reductions[] = {Reduction::kNone, Reduction::kMean, Reduction::kSum};
        const CrossEntropyOptions options{.reduction = reductions[draw.between(0, 2)],
                                          .label_smoothing = draw.coin() ? 0.1 : 0.0};
        expect_agreement(
            draw,
            [&](const Tensors& x) {  // losses are float
              return cross_entropy(x[0], labels, options).to(x[0].scalar_type());
            },
            {draw.numbers({rows, classes}) * 4}, 2e-5, 2e-2);
      },
      8000000);
}

// A norm of x alone, which backward starts from.
TEST(FuzzedShapesTest, NormOfAnInput) {
  fuzz(
      [](Draw& draw) {
        const int64_t width = draw.between(3, 300);
        const AddNormOptions options{.eps = 1e-3, .rms = draw.coin(), .save_sum = true};
        expect_agreement(
            draw, [&](const Tensors& x) { return add_norm(x[0], {}, x[1], x[2], options); },
            {draw.numbers(draw.sizes(width)), draw.numbers({width}), draw.numbers({width})}, 1e-5,
            5e-2);
      },
      9000000);
}

TEST(FuzzedShapesTest, SwigluAndRotary) {
  fuzz(
      [](Draw& draw) {
        expect_agreement(
            draw, [](const Tensors& x) { return swiglu(x[0]); },
            {draw.numbers(draw.sizes(2 * draw.between(1, 150)))}, 5e-6, 2e-2);
        const int64_t length = draw.between(1, 40), width = 2 * draw.between(1, 40);
        const auto table = RotaryTable::of(length, width);
        expect_agreement(
            draw, [&](const Tensors& x) { return rotary(x[0], table); },
            {draw.numbers({draw.between(1, 3), length, draw.between(1, 4), width})}, 2e-6, 1e-2);
      },
      6000000);
}

// Without ReLU: its sign may differ where a value rounds around zero.
TEST(FuzzedShapesTest, BatchNorm) {
  fuzz(
      [](Draw& draw) {
        const Sizes sizes = {draw.between(2, 5), draw.between(1, 70), draw.between(2, 8),
                             draw.between(1, 8)};
        const bool training = draw.coin();
        const auto op = [&](const Tensors& x) {
          const auto type = x[0].scalar_type();
          return batch_norm_relu(
              x[0], x[3],
              {x[1], x[2], torch::zeros({sizes[1]}, type), torch::ones({sizes[1]}, type)},
              {.training = training, .relu = false});
        };
        testing::expect_agreement(op,
                                  {draw.numbers(sizes) + 2, draw.numbers({sizes[1]}),
                                   draw.numbers({sizes[1]}), draw.numbers(sizes)},
                                  1e-4);
      },
      7000000);
}

}  // namespace
}  // namespace fleet::ops
