// SPDX-License-Identifier: Apache-2.0
#include "fleet/ops/update/update_kernels.h"

#include <cmath>
#include <limits>

#include <gtest/gtest.h>
#include <torch/types.h>

namespace fleet::ops {
namespace {

std::vector<const UpdateKernels*> kernels_here() {
  std::vector<const UpdateKernels*> found;
  for (const char* name : {"generic", "avx2", "avx512"}) {
    if (const auto* kernels = update_kernels_for(name)) found.push_back(kernels);
  }
  return found;
}

const std::vector<int64_t> kLengths = {0, 1, 7, 16, 63, 1023, 1024, 1025, 5000};

torch::Tensor random(int64_t n, uint64_t seed, bool positive = false) {
  const auto x = torch::randn({n + 16}, at::detail::createCPUGenerator(seed));
  return positive ? x.square() : x;
}

struct Arrays {
  torch::Tensor w, g, m, v, low;
  explicit Arrays(int64_t n)
      : w(random(n, 1)),
        g(random(n, 2)),
        m(random(n, 3)),
        v(random(n, 4, true)),
        low(torch::zeros({n + 16}, torch::kShort)) {}
  static float* of(const torch::Tensor& x) { return x.data_ptr<float>(); }
  uint16_t* low16() const { return reinterpret_cast<uint16_t*>(low.data_ptr<int16_t>()); }
};

// Sixteen elements behind the end must stay as they were.
void expect_untouched_end(const Arrays& arrays, int64_t n) {
  const Arrays fresh(n);
  EXPECT_TRUE(torch::equal(arrays.w.narrow(0, n, 16), fresh.w.narrow(0, n, 16)));
  EXPECT_TRUE(torch::equal(arrays.m.narrow(0, n, 16), fresh.m.narrow(0, n, 16)));
  EXPECT_TRUE(torch::equal(arrays.low.narrow(0, n, 16), fresh.low.narrow(0, n, 16)));
}

// The formulas of update_kernels.h once more, an element at a time in double precision. They share
// nothing with the kernels but the numbers that go in.
using Cells = std::vector<double>;

struct Oracle {
  Cells w, g, m, v;
  explicit Oracle(const Arrays& a) : w(of(a.w)), g(of(a.g)), m(of(a.m)), v(of(a.v)) {}
  static Cells of(const torch::Tensor& x) {
    const auto wide = x.to(torch::kDouble);
    return {wide.data_ptr<double>(), wide.data_ptr<double>() + wide.numel()};
  }

  void sgd(const SgdStep& s, int64_t n) {
    for (size_t i = 0; i < size_t(n); ++i) {
      w[i] -= double(s.lr) * (double(s.gradient_scale) * g[i] + double(s.weight_decay) * w[i]);
    }
  }
  void momentum(const MomentumStep& s, int64_t n) {
    for (size_t i = 0; i < size_t(n); ++i) {
      const double gradient = double(s.gradient_scale) * g[i] + double(s.weight_decay) * w[i];
      m[i] = double(s.momentum) * m[i] + double(s.inner) * gradient;
      const double ahead = double(s.inner) * gradient + double(s.momentum) * m[i];
      w[i] -= double(s.outer) * (s.nesterov ? ahead : m[i]);
    }
  }
  void adam(const AdamStep& s, int64_t n) {
    for (size_t i = 0; i < size_t(n); ++i) {
      const double gradient = double(s.gradient_scale) * g[i] + double(s.l2) * w[i];
      m[i] = double(s.beta1) * m[i] + double(s.one_minus_beta1) * gradient;
      v[i] = double(s.beta2) * v[i] + double(s.one_minus_beta2) * gradient * gradient;
      const double root = double(s.root_correction) * std::sqrt(v[i]);
      w[i] = double(s.decay_factor) * w[i] - double(s.step) * m[i] / (root + double(s.epsilon));
    }
  }
  SquareSums lamb_moments(const LambStep& s, int64_t n) {
    SquareSums sums = {0, 0};
    for (size_t i = 0; i < size_t(n); ++i) {
      const double gradient = double(s.gradient_scale) * g[i];
      m[i] = double(s.beta1) * m[i] + double(s.one_minus_beta1) * gradient;
      v[i] = double(s.beta2) * v[i] + double(s.one_minus_beta2) * gradient * gradient;
      sums.value += w[i] * w[i];
      sums.update += lamb_update(s, i) * lamb_update(s, i);
    }
    return sums;
  }
  void lamb_apply(const LambStep& s, float rate, int64_t n) {
    for (size_t i = 0; i < size_t(n); ++i) w[i] -= double(rate) * lamb_update(s, i);
  }

 private:
  double lamb_update(const LambStep& s, size_t i) const {
    const double root = double(s.root_correction) * std::sqrt(v[i]);
    return double(s.correction) * m[i] / (root + double(s.epsilon)) + double(s.weight_decay) * w[i];
  }
};

// To a few roundings of float; `low` to one step of bf16 around the exact value.
void expect_like(const Arrays& arrays, const Oracle& oracle, int64_t n, bool has_low,
                 const std::string& what) {
  SCOPED_TRACE(what);
  const auto close = [&](const char* name, const torch::Tensor& ours, const Cells& exact) {
    const auto* const values = ours.const_data_ptr<float>();
    for (size_t i = 0; i < size_t(n); ++i) {
      ASSERT_NEAR(values[i], exact[i], 1e-6 * std::max(1.0, std::abs(exact[i])))
          << name << "[" << i << "]";
    }
  };
  close("w", arrays.w, oracle.w);
  close("g", arrays.g, oracle.g);
  close("m", arrays.m, oracle.m);
  close("v", arrays.v, oracle.v);
  if (!has_low) return;
  const auto rounded = arrays.low.view(torch::kBFloat16).to(torch::kDouble);
  for (size_t i = 0; i < size_t(n); ++i) {
    ASSERT_NEAR(rounded.const_data_ptr<double>()[i], oracle.w[i],
                std::abs(oracle.w[i]) / 256 + 1e-6)
        << "low[" << i << "]";
  }
}

// One kernel at a time, so that no mistake of one hides in the next, with constants that all
// differ.
TEST(UpdateKernelsTest, EveryInstructionSetKeepsToTheFormulas) {
  const SgdStep sgd{.gradient_scale = 0.5f, .weight_decay = 0.02f, .lr = 0.3f};
  const AdamStep adam{.gradient_scale = 0.5f,
                      .l2 = 0.02f,
                      .decay_factor = 0.97f,
                      .beta1 = 0.9f,
                      .beta2 = 0.95f,
                      .one_minus_beta1 = 0.125f,  // not 1 - beta1: it must be read by itself
                      .one_minus_beta2 = 0.0625f,
                      .step = 0.3f,
                      .root_correction = 1.5f,
                      .epsilon = 1e-3f};
  const LambStep lamb{.gradient_scale = 0.5f,
                      .weight_decay = 0.02f,
                      .beta1 = 0.9f,
                      .beta2 = 0.95f,
                      .one_minus_beta1 = 0.125f,
                      .one_minus_beta2 = 0.0625f,
                      .correction = 2,
                      .root_correction = 1.5f,
                      .epsilon = 1e-3f};
  using A = Arrays;
  const auto all = kernels_here();
  ASSERT_FALSE(all.empty());
  for (const auto* k : all) {
    for (const int64_t n : kLengths) {
      // Calls `kernel(arrays, low)` and `formula(oracle)`, with and without the rounded copy.
      const auto expect_formula = [&](const char* name, const auto& kernel, const auto& formula) {
        for (const bool has_low : {false, true}) {
          A arrays(n);
          Oracle oracle(arrays);
          kernel(arrays, has_low ? arrays.low16() : nullptr);
          formula(oracle);
          expect_like(arrays, oracle, n, has_low,
                      std::string(k->name) + " " + name + ", " + std::to_string(n) + " elements");
          expect_untouched_end(arrays, n);
        }
      };
      expect_formula(
          "sgd", [&](A& a, uint16_t* low) { k->sgd(sgd, A::of(a.w), A::of(a.g), n, low); },
          [&](Oracle& oracle) { oracle.sgd(sgd, n); });
      for (const bool nesterov : {false, true}) {
        const MomentumStep momentum{.gradient_scale = 0.5f,
                                    .weight_decay = 0.02f,
                                    .momentum = 0.9f,
                                    .inner = 0.7f,
                                    .outer = 0.3f,
                                    .nesterov = nesterov};
        const auto formula = [&](Oracle& oracle) { oracle.momentum(momentum, n); };
        expect_formula(
            "momentum",
            [&](A& a, uint16_t* low) {
              k->momentum(momentum, A::of(a.w), A::of(a.g), A::of(a.m), n, low);
            },
            formula);
      }
      expect_formula(
          "adam",
          [&](A& a, uint16_t* low) {
            k->adam(adam, A::of(a.w), A::of(a.g), A::of(a.m), A::of(a.v), n, low);
          },
          [&](Oracle& oracle) { oracle.adam(adam, n); });
      A moments(n);
      Oracle expected(moments);
      const auto sums = k->lamb_moments(lamb, A::of(moments.w), A::of(moments.g), A::of(moments.m),
                                        A::of(moments.v), n);
      const auto exact = expected.lamb_moments(lamb, n);
      expect_like(moments, expected, n, /*has_low=*/false, std::string(k->name) + " lamb_moments");
      expect_untouched_end(moments, n);
      EXPECT_NEAR(sums.value, exact.value, 1e-6 * exact.value) << k->name << n;
      EXPECT_NEAR(sums.update, exact.update, 1e-6 * exact.update) << k->name << n;
      expect_formula(
          "lamb_apply",
          [&](A& a, uint16_t* low) {
            k->lamb_apply(lamb, 0.3f, A::of(a.w), A::of(a.m), A::of(a.v), n, low);
          },
          [&](Oracle& oracle) { oracle.lamb_apply(lamb, 0.3f, n); });
    }
  }
}

TEST(UpdateKernelsTest, RoundsToBf16AsLibTorchDoes) {
  auto w = random(5000, 9);
  w[0] = -std::numeric_limits<float>::max();
  w[1] = std::numeric_limits<float>::denorm_min();
  w[2] = std::numeric_limits<float>::quiet_NaN();
  w[3] = 1.00390625f;  // half way, to even
  w[4] = 1.01171875f;
  w[5] = std::numeric_limits<float>::max();
  const int64_t n = w.numel();
  const auto expected = w.to(torch::kBFloat16).view(torch::kShort);
  for (const auto* kernels : kernels_here()) {
    const auto zeros = torch::zeros({n});
    const auto low = torch::zeros({n}, torch::kShort);
    kernels->sgd({.gradient_scale = 1, .weight_decay = 0, .lr = 0}, w.data_ptr<float>(),
                 zeros.data_ptr<float>(), n, reinterpret_cast<uint16_t*>(low.data_ptr<int16_t>()));
    EXPECT_TRUE(torch::equal(low.narrow(0, 3, n - 3), expected.narrow(0, 3, n - 3)));
    EXPECT_TRUE(torch::equal(low.narrow(0, 0, 2), expected.narrow(0, 0, 2)));
    EXPECT_TRUE(std::isnan(low.view(torch::kBFloat16)[2].item<float>()));
  }
}

TEST(UpdateKernelsTest, TakesExactlyWhatWasWrittenToTheRoundedCopy) {
  for (const auto* kernels : kernels_here()) {
    for (const int64_t n : {1, 15, 16, 17, 100}) {
      for (int64_t written = -1; written < n; ++written) {  // -1: nothing
        auto w = random(n, 5);
        w[0] = 1.00390625f;  // half way between two
        const auto before = w.clone();
        auto copy = w.to(torch::kBFloat16);
        if (written >= 0) copy[written] = -3.f;
        kernels->refresh_master(w.data_ptr<float>(),
                                static_cast<const uint16_t*>(copy.const_data_ptr()), n);
        for (int64_t i = 0; i < n; ++i) {
          ASSERT_EQ(w[i].item<float>(), i == written ? -3.f : before[i].item<float>())
              << kernels->name << " " << n << " " << written;
        }
      }
    }
  }
}

TEST(UpdateKernelsTest, SumsOfSquaresLoseNothingOverAHundredMillionElements) {
  const int64_t n = 100'000'000;
  const auto x = torch::full({n}, 1e-3f);
  const double each = static_cast<double>(1e-3f) * static_cast<double>(1e-3f);
  for (const auto* kernels : kernels_here()) {
    EXPECT_NEAR(kernels->square_sum(x.data_ptr<float>(), n) / (each * static_cast<double>(n)), 1,
                1e-7)
        << kernels->name;
  }
}

TEST(UpdateKernelsTest, SumsOfSquaresNeitherOverflowNorVanish) {
  for (const auto* kernels : kernels_here()) {
    const auto sum = [&](float value) {
      const auto x = torch::full({1000}, value);
      return kernels->square_sum(x.data_ptr<float>(), 1000);
    };
    EXPECT_NEAR(sum(3e38f) / (1000 * 9e76), 1, 1e-6);
    EXPECT_NEAR(sum(1e-30f) / (1000 * 1e-60), 1, 1e-6);
    EXPECT_EQ(sum(0), 0);
    auto mixed = torch::full({1000}, 1e-30f);  // small beside large: only the large one counts
    mixed[500] = 2e19f;
    EXPECT_NEAR(kernels->square_sum(mixed.data_ptr<float>(), 1000) / 4e38, 1, 1e-6);
    for (const float bad :
         {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
      for (const int64_t place : {int64_t{0}, int64_t{517}, int64_t{999}}) {
        auto x = torch::ones({1000});
        x[place] = bad;
        EXPECT_FALSE(std::isfinite(kernels->square_sum(x.data_ptr<float>(), 1000)));
      }
    }
  }
}

}  // namespace
}  // namespace fleet::ops
