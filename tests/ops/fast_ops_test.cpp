// SPDX-License-Identifier: Apache-2.0
#include "fleet/ops/fast_ops.h"

#include <limits>

#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/rms_norm.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "fleet/core/error.h"
#include "fleet/core/text/format.h"
#include "fleet/ops/random_scope.h"
#include "fleet/precision/autocast.h"

#include "tests/ops/agreement.h"
#include "tests/support/error_of.h"
#include "tests/support/says.h"

namespace fleet {
namespace {

using testing::error_message_of;
using testing::relative_error;
using testing::results_of;
using testing::Tensors;
using torch::Tensor;
using OpOf = std::function<Tensor(const Tensors&)>;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// The program's own op, replaced: value and gradients as LibTorch's in double, and its type.
void expect_replaced(const OpOf& op, const Tensors& arguments, double tolerance,
                     torch::ScalarType type = torch::kFloat) {
  FastOps fast;
  Tensors rounded;
  for (const auto& x : arguments) rounded.push_back(x.to(type).to(torch::kDouble));
  testing::Results got;
  {
    const FastOpsScope scope(fast);
    got = results_of(op, rounded, type);
  }
  ASSERT_EQ(fast.counts().size(), 1) << fast.summary();
  EXPECT_EQ(fast.counts()[0].replaced, 1) << fast.summary();
  EXPECT_EQ(fast.counts()[0].kept, 0) << fast.summary();
  const auto exact = results_of(op, rounded, torch::kDouble);
  const auto theirs = results_of(op, rounded, type);
  EXPECT_EQ(got.y.scalar_type(), theirs.y.scalar_type());
  ASSERT_EQ(got.y.sizes(), exact.y.sizes());
  EXPECT_LE(relative_error(got.y, exact.y), tolerance) << "value";
  for (size_t i = 0; i < arguments.size(); ++i) {
    EXPECT_LE(relative_error(got.gradients[i], exact.gradients[i]), tolerance)
        << "gradient of argument " << i;
  }
}

// A call that the kernels do not take: LibTorch's, bit for bit, and counted with the reason.
void expect_kept(const OpOf& op, const Tensors& arguments, const std::string& why,
                 torch::ScalarType type = torch::kFloat) {
  FastOps fast;
  testing::Results got;
  {
    const FastOpsScope scope(fast);
    got = results_of(op, arguments, type);
  }
  ASSERT_EQ(fast.counts().size(), 1) << fast.summary();
  EXPECT_EQ(fast.counts()[0].replaced, 0) << fast.summary();
  EXPECT_EQ(fast.counts()[0].kept, 1) << fast.summary();
  EXPECT_EQ(fast.counts()[0].why, why);
  const auto theirs = results_of(op, arguments, type);
  EXPECT_TRUE(torch::equal(got.y, theirs.y));
  for (size_t i = 0; i < arguments.size(); ++i) {
    EXPECT_TRUE(torch::equal(got.gradients[i], theirs.gradients[i])) << i;
  }
}

// How often Fleet's ops ran in place of LibTorch's.
int64_t replaced_by(const std::function<void()>& program, const FastOpsOptions& options = {}) {
  FastOps fast(options);
  {
    const FastOpsScope scope(fast);
    program();
  }
  int64_t sum = 0;
  for (const auto& count : fast.counts()) sum += count.replaced;
  return sum;
}

class FastOpsTest : public ::testing::Test {
 protected:
  FastOpsTest() { torch::manual_seed(5); }

  static Tensor numbers(c10::IntArrayRef sizes) { return torch::randn(sizes, torch::kDouble); }
};

TEST_F(FastOpsTest, GeluIsLibTorchs) {
  for (const char* const approximate : {"none", "tanh"}) {
    const OpOf gelu = [&](const Tensors& x) { return torch::gelu(x[0], approximate); };
    expect_replaced(gelu, {numbers({3, 5, 70})}, 2e-6);
    expect_replaced(gelu, {numbers({2, 33})}, 1e-2, torch::kBFloat16);
  }
}

TEST_F(FastOpsTest, NormsAreLibTorchs) {
  const auto x = numbers({3, 4, 65}), weight = numbers({65}), bias = numbers({65});
  expect_replaced([](const Tensors& t) { return torch::layer_norm(t[0], {65}, t[1], t[2], 1e-3); },
                  {x, weight, bias}, 2e-6);
  expect_replaced([](const Tensors& t) { return torch::layer_norm(t[0], {65}, t[1]); }, {x, weight},
                  2e-6);
  expect_replaced([](const Tensors& t) { return torch::layer_norm(t[0], {65}); }, {x}, 2e-6);
  expect_replaced([](const Tensors& t) { return at::rms_norm(t[0], {65}, t[1], 1e-3); },
                  {x, weight}, 2e-6);
  expect_replaced([](const Tensors& t) { return torch::layer_norm(t[0], {65}, t[1], t[2]); },
                  {x, weight, bias}, 2e-2, torch::kBFloat16);
}

// The epsilon that nobody gave is that of the type.
TEST_F(FastOpsTest, RmsNormHasLibTorchsEpsilon) {
  for (const auto type : {torch::kFloat, torch::kBFloat16}) {
    const auto x = (torch::randn({3, 65}) * 1e-4).to(type).requires_grad_();
    const auto expected = at::rms_norm(x, {65});
    Tensor y;
    EXPECT_EQ(replaced_by([&] { y = at::rms_norm(x, {65}); }), 1);
    EXPECT_EQ(y.scalar_type(), expected.scalar_type());
    EXPECT_LE(relative_error(y, expected), type == torch::kFloat ? 2e-6 : 1e-2);
  }
}

TEST_F(FastOpsTest, AResultOfANormMayBeWrittenTo) {
  const OpOf op = [](const Tensors& t) { return torch::layer_norm(t[0], {9}, t[1]).mul_(2); };
  expect_replaced(op, {numbers({4, 9}), numbers({9})}, 2e-6);
}

TEST_F(FastOpsTest, CrossEntropyIsLibTorchs) {
  const auto logits = numbers({6, 41});
  const auto labels = torch::tensor({3, 40, -100, 0, -100, 17});
  for (const auto reduction : {at::Reduction::None, at::Reduction::Mean, at::Reduction::Sum}) {
    for (const double smoothing : {0.0, 0.2}) {
      const OpOf op = [&](const Tensors& x) {
        return at::cross_entropy_loss(x[0], labels, {}, reduction, -100, smoothing);
      };
      expect_replaced(op, {logits}, 2e-6);
      expect_replaced(op, {logits}, 2e-2, torch::kBFloat16);
    }
  }
}

struct AttentionCase {
  std::string name;
  std::vector<int64_t> q, k;
  Tensor mask = {};
  bool causal = false;
  std::optional<double> scale = {};
  bool grouped = false;
};

TEST_F(FastOpsTest, AttentionIsLibTorchs) {
  const auto keys = torch::tensor({1, 1, 0, 1, 0, 1, 1, 0, 0, 0}, torch::kBool).view({2, 1, 1, 5});
  const auto some = torch::rand({2, 1, 7, 5}).gt(0.4);
  some.select(-1, 0).fill_(true);
  const auto additive = torch::randn({7, 5}).masked_fill(torch::rand({7, 5}).lt(0.2), -kInfinity);
  additive.select(-1, 2).fill_(0.5);
  const std::vector<AttentionCase> cases = {
      {"plain", {2, 3, 7, 8}, {2, 3, 5, 8}},
      {"long", {1, 2, 130, 64}, {1, 2, 150, 64}},
      {"causal", {2, 3, 7, 8}, {2, 3, 7, 8}, {}, true},
      {"causal, fewer keys", {2, 3, 7, 8}, {2, 3, 5, 8}, {}, true},
      {"scale", {2, 3, 7, 8}, {2, 3, 5, 8}, {}, false, 0.3},
      {"keys", {2, 3, 7, 8}, {2, 3, 5, 8}, keys},
      {"expanded keys", {2, 3, 7, 8}, {2, 3, 5, 8}, keys.expand({2, 1, 7, 5})},
      {"queries and keys", {2, 3, 7, 8}, {2, 3, 5, 8}, some},
      {"additive", {2, 3, 7, 8}, {2, 3, 5, 8}, additive},
      {"grouped", {2, 4, 7, 8}, {2, 2, 5, 8}, {}, false, {}, true},
      {"three dimensions", {4, 7, 8}, {4, 5, 8}},
      {"three dimensions, mask", {4, 7, 8}, {4, 5, 8}, torch::randn({4, 7, 5})},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.name);
    const OpOf op = [&](const Tensors& x) {
      std::optional<Tensor> mask;
      if (c.mask.defined()) {
        mask = c.mask.scalar_type() == torch::kBool ? c.mask : c.mask.to(x[0].scalar_type());
      }
      return at::scaled_dot_product_attention(x[0], x[1], x[2], mask, 0.0, c.causal, c.scale,
                                              c.grouped);
    };
    expect_replaced(op, {numbers(c.q), numbers(c.k), numbers(c.k)}, 3e-6);
  }
}

// LibTorch gives zeros, and no gradient.
TEST_F(FastOpsTest, AQueryThatSeesNothingGetsZeros) {
  auto mask = torch::ones({2, 1, 3, 4}, torch::kBool);
  mask[0][0][1].fill_(false);
  const OpOf by_query = [&](const Tensors& x) {
    return at::scaled_dot_product_attention(x[0], x[1], x[2], mask);
  };
  const Tensors arguments = {numbers({2, 2, 3, 8}), numbers({2, 2, 4, 8}), numbers({2, 2, 4, 8})};
  expect_replaced(by_query, arguments, 3e-6);
  auto keys = torch::ones({2, 1, 1, 4}, torch::kBool);
  keys[1].fill_(false);
  const OpOf by_sample = [&](const Tensors& x) {
    return at::scaled_dot_product_attention(x[0], x[1], x[2], keys);
  };
  expect_replaced(by_sample, arguments, 3e-6);
}

TEST_F(FastOpsTest, KeepsLibTorchsOpsWhereThereIsNoKernel) {
  const auto x = numbers({4, 6});
  const OpOf gelu = [](const Tensors& t) { return torch::gelu(t[0]); };
  expect_kept(gelu, {x}, "type", torch::kDouble);
  expect_kept([](const Tensors& t) { return torch::gelu(t[0].t()); }, {x}, "layout");
  expect_kept([](const Tensors& t) { return torch::layer_norm(t[0], {4, 6}); }, {x}, "shape");
  expect_kept([](const Tensors& t) { return at::rms_norm(t[0].t(), {4}); }, {x}, "layout");
  const auto labels = torch::tensor({1, 0, 5, 2});
  const auto class_weights = torch::rand({6});
  expect_kept([&](const Tensors& t) { return at::cross_entropy_loss(t[0], labels, class_weights); },
              {x}, "options");
  const auto soft = torch::softmax(torch::randn({4, 6}), -1);
  expect_kept([&](const Tensors& t) { return at::cross_entropy_loss(t[0], soft); }, {x}, "shape");
  const auto q = numbers({2, 2, 3, 8});
  expect_kept(
      [&](const Tensors& t) { return at::scaled_dot_product_attention(t[0], t[0], t[0], t[1]); },
      {q, numbers({3, 3})}, "mask");
  expect_kept([&](const Tensors& t) { return at::scaled_dot_product_attention(t[0], t[0], t[1]); },
              {q, numbers({2, 2, 3, 5})}, "shape");
}

TEST_F(FastOpsTest, ErrorsAreLibTorchs) {
  FastOps fast;
  const FastOpsScope scope(fast);
  const auto logits = torch::randn({2, 5}).requires_grad_();
  EXPECT_THROW(at::cross_entropy_loss(logits, torch::tensor({1, 9})), c10::Error);
  EXPECT_THROW(torch::layer_norm(logits, {4}), c10::Error);
  EXPECT_THROW(torch::dropout(logits, 1.5, true), c10::Error);
}

TEST_F(FastOpsTest, DropoutDropsItsShareForwardAndBackward) {
  FastOps fast;
  const auto x = torch::ones({64, 1000}).requires_grad_();
  Tensor y;
  {
    const FastOpsScope scope(fast);
    y = torch::dropout(x, 0.25, true);
    EXPECT_TRUE(torch::dropout(x, 0.25, false).is_same(x));
    EXPECT_TRUE(torch::equal(torch::dropout(x, 1.0, true), torch::zeros_like(x)));
  }
  EXPECT_EQ(fast.summary(), "1 dropout by Fleet's ops; 1 dropout (options) by LibTorch's");
  EXPECT_NEAR(y.eq(0).to(torch::kFloat).mean().item<double>(), 0.25, 0.01);
  EXPECT_TRUE(torch::allclose(y.max(), torch::tensor(1 / 0.75f), 1e-4));
  EXPECT_TRUE(torch::equal(torch::autograd::grad({y.sum()}, {x})[0], y.detach()));
}

TEST_F(FastOpsTest, DropoutKeepsTheOrderOfMemory) {
  const auto x = torch::randn({2, 3, 4, 5});
  for (const auto& laid_out : {x.contiguous(torch::MemoryFormat::ChannelsLast), x.transpose(0, 1),
                               x.permute({3, 1, 0, 2})}) {
    const auto leaf = laid_out.detach().requires_grad_();
    Tensor y;
    EXPECT_EQ(replaced_by([&] { y = torch::dropout(leaf, 0.5, true); }), 1);
    EXPECT_EQ(y.sizes(), leaf.sizes());
    EXPECT_EQ(y.strides(), leaf.strides());
    EXPECT_TRUE(torch::equal(y, leaf * y.ne(0) * 2));
  }
  const auto gaps = torch::randn({4, 9}).narrow(1, 0, 5).requires_grad_();
  EXPECT_EQ(replaced_by([&] { torch::dropout(gaps, 0.5, true); }), 0);
}

// Rows of tokens and of heads belong to samples: those of a micro-batch have the masks that they
// have in the batch.
TEST_F(FastOpsTest, MasksBelongToSamples) {
  FastOps fast;
  const FastOpsScope scope(fast);
  const auto drop = [](const Tensor& x, int64_t first, int64_t samples) {
    const ops::RandomScope random({.seed = 3, .first_sample = first, .samples = samples});
    return torch::dropout(x, 0.5, true);
  };
  for (const int64_t rows : {1, 6}) {
    const auto x = torch::ones({4 * rows, 10}).requires_grad_();
    const auto whole = drop(x, 0, 4);
    const auto second = drop(x.narrow(0, 2 * rows, 2 * rows), 2, 2);
    EXPECT_TRUE(torch::equal(second, whole.narrow(0, 2 * rows, 2 * rows))) << rows;
  }
  // Five rows are no samples: then masks of micro-batches are independent.
  const auto x = torch::ones({5, 400}).requires_grad_();
  const auto one = drop(x, 0, 2), other = drop(x, 2, 2);
  for (int64_t shift = 0; shift < 5; ++shift) {
    const auto a = one.narrow(0, shift, 5 - shift), b = other.narrow(0, 0, 5 - shift);
    EXPECT_NEAR(a.eq(b).to(torch::kFloat).mean().item<double>(), 0.5, 0.15) << shift;
  }
}

TEST_F(FastOpsTest, AttentionsDropoutBelongsToSamplesToo) {
  FastOps fast;
  const FastOpsScope scope(fast);
  const auto attend = [](const Tensor& x, int64_t first, int64_t samples) {
    const ops::RandomScope random({.seed = 3, .first_sample = first, .samples = samples});
    return at::scaled_dot_product_attention(x, x, x, {}, 0.5);
  };
  for (const bool heads_are_apart : {true, false}) {
    const auto x = torch::randn({4, 3, 5, 8}).requires_grad_();
    const auto shaped = [&](const Tensor& t) { return heads_are_apart ? t : t.flatten(0, 1); };
    const auto whole = attend(shaped(x), 0, 4);
    const auto second = attend(shaped(x.narrow(0, 2, 2)), 2, 2);
    EXPECT_TRUE(torch::equal(second, whole.slice(0, whole.size(0) / 2)));
    EXPECT_FALSE(
        torch::allclose(whole, at::scaled_dot_product_attention(shaped(x), shaped(x), shaped(x))));
  }
}

struct Twice : torch::autograd::Function<Twice> {
  static Tensor forward(torch::autograd::AutogradContext*, const Tensor& x) {
    return torch::gelu(x);  // without gradients: a checkpoint's forward is written like this
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 const torch::autograd::variable_list& gradients) {
    const torch::AutoGradMode on(true);
    torch::gelu(gradients[0].detach().requires_grad_());  // the forward again
    return gradients;
  }
};

TEST_F(FastOpsTest, LeavesAloneWhatRunsTwice) {
  const auto x = torch::randn({4}).requires_grad_();
  EXPECT_EQ(replaced_by([&] { Twice::apply(x).sum().backward(); }), 0);
  EXPECT_EQ(replaced_by([&] { torch::gelu(x).sum().backward(); }), 1);
  EXPECT_EQ(replaced_by([&] {
              const torch::NoGradGuard no_grad;
              torch::gelu(x);
            }),
            0);
}

TEST_F(FastOpsTest, ExcludedOpsStay) {
  const auto x = torch::randn({4, 4}).requires_grad_();
  const auto program = [&] { torch::gelu(torch::layer_norm(x, {4})); };
  EXPECT_EQ(replaced_by(program), 2);
  EXPECT_EQ(replaced_by(program, {.exclude = {"gelu"}}), 1);
  EXPECT_TRUE(says(error_message_of([] { const FastOps fast({.exclude = {"layernorm"}}); }),
                   "[fast_ops]", "exclude: 'layernorm' is not replaced anyway",
                   "did you mean 'layer_norm'"));
}

TEST_F(FastOpsTest, ScopesNestAndEnd) {
  FastOps outer, inner;
  const auto x = torch::randn({4}).requires_grad_();
  {
    const FastOpsScope first(outer);
    {
      const FastOpsScope second(inner);
      const FastOpsScope none(nullptr);
      torch::gelu(x);
    }
    torch::gelu(x);
    torch::gelu(x);
  }
  torch::gelu(x);
  EXPECT_EQ(inner.summary(), "1 gelu by Fleet's ops");
  EXPECT_EQ(outer.summary(), "2 gelu by Fleet's ops");
  EXPECT_EQ(FastOps().summary(), "nothing was replaced");
}

// Types are those of LibTorch under autocast; what a custom list names is left to it.
TEST_F(FastOpsTest, FollowsAutocast) {
  const auto types = [&](FastOps* fast, const precision::Autocast& autocast) {
    const precision::AutocastScope cast(autocast);
    const FastOpsScope scope(fast);
    std::vector<torch::ScalarType> result;
    const auto labels = torch::tensor({1, 0, 3, 2});
    const auto q = torch::randn({1, 2, 3, 8}).requires_grad_();
    for (const auto type : {torch::kFloat, torch::kBFloat16}) {
      const auto x = torch::randn({4, 8}).to(type).requires_grad_();
      const auto weight = torch::ones({8}).requires_grad_();
      for (const auto& y :
           {torch::gelu(x), torch::dropout(x, 0.1, true), at::cross_entropy_loss(x, labels),
            torch::layer_norm(x, {8}, weight), at::scaled_dot_product_attention(q, q, q)}) {
        result.push_back(y.scalar_type());
      }
    }
    return result;
  };
  const precision::Autocast bf16;
  FastOps fast;
  EXPECT_EQ(types(&fast, bf16), types(nullptr, bf16));
  EXPECT_TRUE(says(fast.summary(), "2 dropout, 2 scaled_dot_product_attention, 2 gelu"));
  const precision::Autocast listed({.custom_black_list = {"gelu", "layer_norm"}});
  FastOps with_lists;
  EXPECT_EQ(types(&with_lists, listed), types(nullptr, listed));
  EXPECT_EQ(with_lists.summary().find("gelu"), std::string::npos) << with_lists.summary();
}

TEST_F(FastOpsTest, MetaTensorsHaveTheShapesOfTheCpu) {
  const auto x = torch::randn({2, 5, 8}).to(torch::kMeta).requires_grad_();
  EXPECT_EQ(replaced_by([&] {
              auto y = torch::dropout(torch::gelu(torch::layer_norm(x, {8})), 0.1, true);
              y = at::scaled_dot_product_attention(y, y, y);
              EXPECT_EQ(y.sizes(), x.sizes());
              const auto labels = torch::zeros({10}, torch::kLong).to(torch::kMeta);
              at::cross_entropy_loss(y.flatten(0, 1), labels).backward();
              EXPECT_EQ(x.grad().sizes(), x.sizes());
            }),
            5);
}

}  // namespace
}  // namespace fleet
