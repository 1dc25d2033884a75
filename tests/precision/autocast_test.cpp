// SPDX-License-Identifier: Apache-2.0
#include "fleet/precision/autocast.h"

#include <thread>

#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>
#include <torch/library.h>
#include <torch/nn/modules/batchnorm.h>

#include "fleet/core/torch/interception.h"

#include "tests/support/error_of.h"
#include "tests/support/says.h"

namespace fleet::precision {
namespace {

using testing::error_message_of;
using torch::kBFloat16;
using torch::kFloat;
using torch::kHalf;

torch::Tensor sample(torch::IntArrayRef sizes, uint64_t seed = 1) {
  return torch::randn(sizes, at::detail::createCPUGenerator(seed));
}

struct Counted {
  static inline int calls = 0;
};

// Stands for any of Fleet's interceptors.
torch::Tensor counted_relu6(const torch::Tensor& x) {
  const compat::NoInterceptScope engine;
  ++Counted::calls;
  return at::relu6(x);
}

TEST(AutocastTest, IsOnInsideItsScopeOnly) {
  const auto x = sample({3, 3});
  const Autocast bf16;
  const Autocast fp16({.dtype = kHalf});
  EXPECT_EQ(x.mm(x).scalar_type(), kFloat);
  {
    const AutocastScope scope(bf16);
    EXPECT_EQ(x.mm(x).scalar_type(), kBFloat16);
  }
  {
    const AutocastScope scope(fp16);
    EXPECT_EQ(x.mm(x).scalar_type(), kHalf);
  }
  EXPECT_EQ(x.mm(x).scalar_type(), kFloat);
  const AutocastScope inert(nullptr);
  EXPECT_EQ(x.mm(x).scalar_type(), kFloat);
}

TEST(AutocastTest, WhiteOpsRunLow) {
  const auto x = sample({4, 5});
  const auto weight = sample({5}, 2);
  const Autocast autocast({.custom_white_list = {"softmax", "layer_norm", "cat"}});
  const AutocastScope scope(autocast);
  const auto y = torch::softmax(x, 1);
  EXPECT_EQ(y.scalar_type(), kBFloat16);
  EXPECT_TRUE(torch::equal(y, torch::_softmax(x.to(kBFloat16), 1, false)));
  // Optional tensors and lists of tensors are cast too; integers are not.
  EXPECT_EQ(torch::layer_norm(x, {5}, weight, weight).scalar_type(), kBFloat16);
  EXPECT_EQ(torch::cat({x, x}).scalar_type(), kBFloat16);
  EXPECT_EQ(torch::cat({x.to(torch::kLong), x.to(torch::kLong)}).scalar_type(), torch::kLong);
}

TEST(AutocastTest, BlackOpsRunInFp32) {
  const auto x = sample({4, 4});
  const auto low = x.to(kBFloat16);
  const auto product = x.mm(x);
  const auto rows = torch::tensor({2, 0});
  const Autocast autocast({.custom_black_list = {"mm", "gelu", "index", "sum"}});
  const AutocastScope scope(autocast);
  // LibTorch's own list has it among the low ones.
  EXPECT_TRUE(torch::equal(x.mm(x), product));
  EXPECT_TRUE(torch::equal(torch::gelu(low), torch::gelu(low.to(kFloat))));
  EXPECT_EQ(low.index({rows}).scalar_type(), kFloat);
  EXPECT_EQ(low.sum().scalar_type(), kFloat);
  EXPECT_EQ(torch::bmm(x.unsqueeze(0), x.unsqueeze(0)).scalar_type(), kBFloat16)
      << "a neighbour that is not listed";
}

TEST(AutocastTest, DoubleStaysDouble) {
  const auto x = sample({3, 3}).to(torch::kDouble);
  const Autocast autocast({.custom_white_list = {"softmax"}, .custom_black_list = {"gelu"}});
  const AutocastScope scope(autocast);
  EXPECT_EQ(torch::softmax(x, 1).scalar_type(), torch::kDouble);
  EXPECT_EQ(torch::gelu(x).scalar_type(), torch::kDouble);
}

TEST(AutocastTest, ListsHoldInTheirOwnScopesOnly) {
  const auto x = sample({3, 3});
  const Autocast low({.custom_white_list = {"softmax", "tanh"}});
  const Autocast high({.custom_black_list = {"softmax", "matmul", "mse_loss"}});
  const Autocast plain;
  const auto seen = [&] {
    return std::vector{torch::softmax(x.to(kHalf), 1).scalar_type(), torch::tanh(x).scalar_type(),
                       torch::matmul(x, x).scalar_type(),
                       torch::mse_loss(x.to(kBFloat16), x.to(kBFloat16)).scalar_type()};
  };
  using Types = std::vector<torch::ScalarType>;
  {
    const AutocastScope scope(low);
    EXPECT_EQ(seen(), (Types{kBFloat16, kBFloat16, kBFloat16, kFloat}));
    {
      const AutocastScope inner(high);
      EXPECT_EQ(seen(), (Types{kFloat, kFloat, kFloat, kFloat}));
    }
    {
      const AutocastScope inner(plain);  // what LibTorch itself does, though kernels are in place
      EXPECT_EQ(seen(), (Types{kHalf, kFloat, kBFloat16, kFloat}));
    }
    EXPECT_EQ(seen(), (Types{kBFloat16, kBFloat16, kBFloat16, kFloat}));
  }
  EXPECT_EQ(seen(), (Types{kHalf, kFloat, kFloat, kBFloat16}));
}

TEST(AutocastTest, GradientsHaveTheParametersType) {
  auto weight = sample({4, 4}).requires_grad_();
  const auto x = sample({2, 4}, 2);
  const auto loss = [&] { return torch::softmax(torch::tanh(x.mm(weight)), 1).square().sum(); };
  loss().backward();
  const auto exact = weight.grad().clone();
  weight.mutable_grad().reset();

  const Autocast autocast({.custom_white_list = {"softmax"}, .custom_black_list = {"tanh"}});
  torch::Tensor low;
  {
    const AutocastScope scope(autocast);
    low = loss();
  }
  low.backward();
  EXPECT_EQ(weight.grad().scalar_type(), kFloat);
  EXPECT_FALSE(torch::equal(weight.grad(), exact));
  EXPECT_TRUE(torch::allclose(weight.grad(), exact, 0.05, 0.01));
}

TEST(AutocastTest, BatchNormStatisticsStillMove) {
  torch::nn::BatchNorm1d plain(3), low(3);
  const auto x = sample({16, 3}) * 2 + 1;
  plain->forward(x);
  const Autocast autocast({.custom_white_list = {"batch_norm"}});
  const AutocastScope scope(autocast);
  EXPECT_EQ(low->forward(x).scalar_type(), kBFloat16);
  EXPECT_EQ(low->running_mean.scalar_type(), kFloat);
  EXPECT_TRUE(torch::allclose(low->running_mean, plain->running_mean, 0.02, 0.01));
}

TEST(AutocastTest, ExceptionsEndTheScope) {
  const auto x = sample({3, 3});
  const Autocast autocast({.custom_white_list = {"softmax"}});
  try {
    const AutocastScope scope(autocast);
    const AutocastScope inner(autocast);
    throw std::runtime_error("a user's");
  } catch (const std::runtime_error&) {
  }
  EXPECT_EQ(x.mm(x).scalar_type(), kFloat);
  EXPECT_EQ(torch::softmax(x, 1).scalar_type(), kFloat);
  EXPECT_EQ(at::autocast::increment_nesting(), 1);
  at::autocast::decrement_nesting();
}

// LibTorch keeps cast weights, and gives the bf16 one to a product in fp16.
TEST(AutocastTest, NestedScopesOfAnotherTypeCastWeightsAnew) {
  const auto weight = sample({3, 3}).requires_grad_();
  const auto x = sample({3, 3}, 2);
  const Autocast bf16;
  const Autocast fp16({.dtype = kHalf});
  const AutocastScope outer(bf16);
  EXPECT_EQ(x.mm(weight).scalar_type(), kBFloat16);
  {
    const AutocastScope inner(fp16);
    EXPECT_EQ(x.mm(weight).scalar_type(), kHalf);
  }
  EXPECT_EQ(x.mm(weight).scalar_type(), kBFloat16);
}

TEST(AutocastTest, WeightsThatChangedAreCastAnewInTheNextScope) {
  auto weight = torch::ones({2, 2}).requires_grad_();
  const auto x = torch::ones({1, 2});
  const Autocast autocast;
  const auto product = [&] {
    const AutocastScope scope(autocast);
    return x.mm(weight).sum().item<float>();
  };
  EXPECT_EQ(product(), 4);
  {
    const torch::NoGradGuard no_grad;
    weight.mul_(2);
  }
  EXPECT_EQ(product(), 8);
}

TEST(AutocastTest, OtherThreadsAreNotTouched) {
  const auto x = sample({3, 3});
  const Autocast low({.custom_white_list = {"softmax"}});
  const Autocast high({.custom_black_list = {"softmax", "mm"}});
  const AutocastScope scope(low);
  std::vector<torch::ScalarType> there;
  std::thread([&] {
    there.push_back(torch::softmax(x, 1).scalar_type());
    const AutocastScope own(high);
    there.push_back(torch::softmax(x.to(kHalf), 1).scalar_type());
    there.push_back(x.mm(x).scalar_type());
  }).join();
  EXPECT_EQ(there, (std::vector{kFloat, kFloat, kFloat}));
  EXPECT_EQ(torch::softmax(x, 1).scalar_type(), kBFloat16);
}

TEST(AutocastTest, InterceptedOpsAreSeenOnceAndStillCast) {
  const auto x = sample({3});
  const Autocast autocast({.custom_white_list = {"relu6", "tanh"}});
  const AutocastScope scope(autocast);
  const compat::InterceptScope intercept;
  Counted::calls = 0;
  EXPECT_EQ(torch::relu6(x).scalar_type(), kBFloat16);
  EXPECT_EQ(torch::tanh(x).scalar_type(), kBFloat16) << "an op that nobody intercepts";
  EXPECT_EQ(Counted::calls, 1);
}

TEST(AutocastTest, SaysNothingWhenItReplacesAKernel) {
  c10::WarningUtils::set_warnAlways(true);
  ::testing::internal::CaptureStderr();
  const Autocast autocast({.custom_black_list = {"addbmm"}});  // which no other test names
  const auto said = ::testing::internal::GetCapturedStderr();
  c10::WarningUtils::set_warnAlways(false);
  EXPECT_EQ(said, "");
}

TEST(AutocastTest, RefusesAllThatIsWrongAtOnce) {
  const auto text = error_message_of([] {
    const Autocast autocast({.dtype = kFloat,
                             .custom_white_list = {"softmx", "gelu", "relu_", "elementwise_add"},
                             .custom_black_list = {"gelu", "view", "zeros"}});
  });
  EXPECT_TRUE(says(text, "[amp] these options do not work:", "dtype Float is no low precision",
                   "custom_white_list: LibTorch has no op 'softmx' (did you mean 'softmax'",
                   "'elementwise_add' (Paddle's name; LibTorch's is 'add')",
                   "'relu_' cannot be chosen: it writes to an argument",
                   "'gelu' is in custom_white_list and in custom_black_list",
                   "custom_black_list: the precision of 'view' cannot be chosen: it returns a view",
                   "'zeros' cannot be chosen: it takes no tensor"));
}

}  // namespace
}  // namespace fleet::precision

TORCH_LIBRARY_IMPL(aten, FLEET_INTERCEPT_KEY, library) {
  library.impl("relu6", fleet::precision::counted_relu6);
}
