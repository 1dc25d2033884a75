#include "fleet/ops/update_kernels.h"

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

void expect_same(const Arrays& a, const Arrays& b, const std::string& what) {
  for (const auto& [x, y] :
       {std::pair{a.w, b.w}, std::pair{a.m, b.m}, std::pair{a.v, b.v}, std::pair{a.g, b.g}}) {
    // Contracted multiply-adds differ in the last digits where instruction sets differ.
    EXPECT_TRUE(torch::allclose(x, y, 1e-5, 5e-6))
        << what << ": " << (x - y).abs().max().item<float>();
  }
  EXPECT_LE((a.low.to(torch::kInt) - b.low.to(torch::kInt)).abs().max().item<int>(), 1) << what;
}

// Sixteen elements behind the end must stay as they were.
void expect_untouched_end(const Arrays& arrays, int64_t n) {
  const Arrays fresh(n);
  EXPECT_TRUE(torch::equal(arrays.w.narrow(0, n, 16), fresh.w.narrow(0, n, 16)));
  EXPECT_TRUE(torch::equal(arrays.m.narrow(0, n, 16), fresh.m.narrow(0, n, 16)));
  EXPECT_TRUE(torch::equal(arrays.low.narrow(0, n, 16), fresh.low.narrow(0, n, 16)));
}

TEST(UpdateKernelsTest, EveryInstructionSetGivesTheSame) {
  const SgdStep sgd{.gradient_scale = 0.5f, .weight_decay = 0.01f, .lr = 0.1f};
  const AdamStep adam{.gradient_scale = 0.5f,
                      .l2 = 0.01f,
                      .keep = 0.99f,
                      .beta1 = 0.9f,
                      .beta2 = 0.99f,
                      .rest1 = 0.1f,
                      .rest2 = 0.01f,
                      .step = 0.1f,
                      .root_correction = 1.5f,
                      .epsilon = 1e-6f};
  const LambStep lamb{.gradient_scale = 0.5f,
                      .weight_decay = 0.01f,
                      .beta1 = 0.9f,
                      .beta2 = 0.99f,
                      .rest1 = 0.1f,
                      .rest2 = 0.01f,
                      .correction = 2,
                      .root_correction = 1.5f,
                      .epsilon = 1e-6f};
  const auto run = [&](const UpdateKernels& k, int64_t n) {
    Arrays a(n);
    using A = Arrays;
    k.sgd(sgd, A::of(a.w), A::of(a.g), n, a.low16());
    for (const bool nesterov : {false, true}) {
      const MomentumStep momentum{.gradient_scale = 0.5f,
                                  .weight_decay = 0.01f,
                                  .momentum = 0.9f,
                                  .inner = 0.7f,
                                  .outer = 0.1f,
                                  .nesterov = nesterov};
      k.momentum(momentum, A::of(a.w), A::of(a.g), A::of(a.m), n, nullptr);
      const double norm =
          k.momentum_and_norm(momentum, A::of(a.w), A::of(a.g), A::of(a.m), n, a.low16());
      EXPECT_EQ(norm, k.square_sum(A::of(a.w), n));
    }
    k.adam(adam, A::of(a.w), A::of(a.g), A::of(a.m), A::of(a.v), n, nullptr);
    const auto sums = k.lamb_moments(lamb, A::of(a.w), A::of(a.g), A::of(a.m), A::of(a.v), n);
    EXPECT_EQ(sums.value, k.square_sum(A::of(a.w), n));
    k.lamb_apply(lamb, 0.1f, A::of(a.w), A::of(a.m), A::of(a.v), n, a.low16());
    expect_untouched_end(a, n);
    return a;
  };
  const auto all = kernels_here();
  ASSERT_FALSE(all.empty());
  for (const int64_t n : kLengths) {
    const auto expected = run(*all[0], n);
    for (const auto* kernels : all) {
      expect_same(run(*kernels, n), expected, std::string(kernels->name) + std::to_string(n));
    }
  }
}

TEST(UpdateKernelsTest, RoundsToBf16AsTheEngineDoes) {
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
