// SPDX-License-Identifier: Apache-2.0
#include "fleet/parallel/sync_batch_norm.h"

#include <mutex>

#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/instancenorm.h>

#include "fleet/ops/batch_norm_relu.h"

#include "tests/support/thread_ranks.h"

namespace fleet {
namespace {

using testing::error_message_of;
using testing::run_ranks;

torch::Tensor whole_batch() {
  auto generator = at::detail::createCPUGenerator(5);
  return torch::randn({7, 4, 5, 5}, generator) * 3 + 100;  // a far mean shows sloppy variances
}

torch::nn::BatchNorm2d fixed_norm() {
  torch::nn::BatchNorm2d norm(4);
  const torch::NoGradGuard no_grad;
  norm->weight.copy_(torch::tensor({0.5f, 1.f, 2.f, -1.f}));
  norm->bias.copy_(torch::tensor({1.f, 0.f, -1.f, 3.f}));
  return norm;
}

// A loss whose gradient differs for every element.
torch::Tensor loss_of(const torch::Tensor& y, const torch::Tensor& x) {
  return (y * y * (x.detach() - 100)).sum();
}

TEST(SyncBatchNormTest, EqualsOneProcessWithTheWholeBatchForUnequalShares) {
  auto x = whole_batch().requires_grad_();
  auto norm = fixed_norm();
  auto y = norm(x);
  loss_of(y, x).backward();

  const std::vector<std::pair<int64_t, int64_t>> shares = {{0, 4}, {4, 2}, {6, 1}};
  run_ranks(3, [&](const testing::Comm& comm) {
    const auto [begin, length] = shares[static_cast<size_t>(comm->rank())];
    auto part = whole_batch().narrow(0, begin, length).clone().requires_grad_();
    auto local = fixed_norm();
    torch::Tensor out;
    {
      const SyncBatchNormScope scope(comm);
      out = local(part);
    }
    loss_of(out, part).backward();
    EXPECT_TRUE(torch::allclose(out, y.narrow(0, begin, length), 1e-4, 1e-4));
    EXPECT_TRUE(torch::allclose(part.grad(), x.grad().narrow(0, begin, length), 1e-3, 1e-3));
    EXPECT_TRUE(torch::allclose(local->running_mean, norm->running_mean));
    EXPECT_TRUE(torch::allclose(local->running_var, norm->running_var, 1e-4));
    auto weight_gradient = local->weight.grad().clone();
    comm->all_reduce(weight_gradient, comm::ReduceOp::kSum, "a check");
    EXPECT_TRUE(torch::allclose(weight_gradient, norm->weight.grad(), 1e-3, 1e-2));
    const auto all = comm->all_gather(local->running_var, "a check");
    EXPECT_TRUE(torch::equal(all[0], all[2]));
  });
}

struct Layout {
  std::vector<int64_t> sizes;
  torch::MemoryFormat format = torch::MemoryFormat::Contiguous;
  torch::ScalarType type = torch::kFloat;
  torch::ScalarType parameter_type = torch::kFloat;
  bool affine = true;
  double tolerance = 1e-4;
};

// Statistics, normalised values and gradients, in the layouts and types that models have.
TEST(SyncBatchNormTest, EqualsOneProcessInEveryLayoutAndType) {
  const std::vector<Layout> layouts = {
      {.sizes = {6, 5, 7, 3}},
      {.sizes = {6, 5, 7, 3}, .format = torch::MemoryFormat::ChannelsLast},
      {.sizes = {6, 33, 1, 1}, .format = torch::MemoryFormat::ChannelsLast},
      {.sizes = {6, 5, 2, 3, 4}, .format = torch::MemoryFormat::ChannelsLast3d},
      {.sizes = {6, 5, 11}},
      {.sizes = {60, 9}},
      {.sizes = {6, 5, 7, 3}, .affine = false},
      {.sizes = {6, 5, 7, 3},
       .type = torch::kDouble,
       .parameter_type = torch::kDouble,
       .tolerance = 1e-10},
      {.sizes = {6, 8, 7, 3}, .type = torch::kBFloat16, .tolerance = 3e-2},
      {.sizes = {6, 8, 7, 3},
       .type = torch::kBFloat16,
       .parameter_type = torch::kBFloat16,
       .tolerance = 3e-2},
  };
  for (size_t l = 0; l < layouts.size(); ++l) {
    const auto& layout = layouts[l];
    auto generator = at::detail::createCPUGenerator(l);
    const auto channels = layout.sizes[1];
    const auto values = (torch::randn(layout.sizes, generator, torch::kDouble) + 2).to(layout.type);
    const auto wanted = torch::randn(layout.sizes, generator, torch::kDouble).to(layout.type);
    const auto weight = torch::randn({channels}, generator).to(layout.parameter_type);
    struct Result {
      torch::Tensor y, dx, dweight, dbias, mean, var;
    };
    const auto run = [&](const torch::Tensor& part, const torch::Tensor& gradient) {
      auto x = part.contiguous(layout.format).detach().requires_grad_();
      auto w = weight.clone().requires_grad_();
      auto b = torch::zeros_like(weight).requires_grad_();
      auto mean = torch::zeros({channels}, layout.parameter_type);
      auto var = torch::ones({channels}, layout.parameter_type);
      const auto y = torch::batch_norm(x, layout.affine ? w : torch::Tensor(),
                                       layout.affine ? b : torch::Tensor(), mean, var,
                                       /*training=*/true, 0.1, 1e-5, false);
      y.backward(gradient);
      return Result{y.detach(), x.grad(), w.grad(), b.grad(), mean, var};
    };
    const auto whole = run(values, wanted);
    run_ranks(2, [&](const testing::Comm& comm) {
      const auto half = layout.sizes[0] / 2;
      const auto own = [&](const torch::Tensor& all) {
        return all.narrow(0, comm->rank() * half, half);
      };
      const SyncBatchNormScope scope(comm);
      const auto result = run(own(values), own(wanted));
      const auto close = [&](const torch::Tensor& a, const torch::Tensor& b) {
        return torch::allclose(a.to(torch::kDouble), b.to(torch::kDouble), layout.tolerance,
                               layout.tolerance * 10);
      };
      EXPECT_TRUE(close(result.y, own(whole.y))) << l;
      EXPECT_EQ(result.y.scalar_type(), layout.type);
      EXPECT_TRUE(close(result.dx, own(whole.dx))) << l;
      EXPECT_TRUE(close(result.mean, whole.mean) && close(result.var, whole.var)) << l;
      EXPECT_TRUE(testing::same_everywhere(comm, result.var.to(torch::kDouble))) << l;
      if (!layout.affine) return;
      auto sums = torch::stack({result.dweight, result.dbias}).to(torch::kDouble);
      comm->all_reduce(sums, comm::ReduceOp::kSum, "a check");
      EXPECT_TRUE(close(sums, torch::stack({whole.dweight, whole.dbias}))) << l;
    });
  }
}

// Fleet's own op, which models may call themselves.
TEST(SyncBatchNormTest, ReachesTheFusedOp) {
  for (const bool adds : {false, true}) {
    for (const bool relu : {false, true}) {
      for (const auto type : {torch::kFloat, torch::kBFloat16}) {
        const double tolerance = type == torch::kFloat ? 1e-4 : 5e-2;
        const auto run = [&](int64_t begin, int64_t end, torch::nn::BatchNorm2d& norm) {
          auto x = (whole_batch() - 100).slice(0, begin, end).to(type).detach().requires_grad_();
          auto residual = whole_batch().slice(0, begin, end).sub(99).to(type).requires_grad_();
          residual.retain_grad();
          const auto y = ops::batch_norm_relu(
              x, adds ? residual : torch::Tensor(),
              {norm->weight, norm->bias, norm->running_mean, norm->running_var}, {.relu = relu});
          (y.to(torch::kFloat).square() * (whole_batch() - 99).slice(0, begin, end))
              .sum()
              .backward();
          return std::vector<torch::Tensor>{y.detach(), x.grad(),
                                            adds ? residual.grad() : torch::zeros_like(x)};
        };
        auto norm = fixed_norm();
        const auto whole = run(0, 7, norm);
        run_ranks(2, [&](const testing::Comm& comm) {
          const int64_t begin = comm->rank() == 0 ? 0 : 5, end = comm->rank() == 0 ? 5 : 7;
          auto local = fixed_norm();
          const SyncBatchNormScope scope(comm);
          const auto part = run(begin, end, local);
          for (size_t i = 0; i < part.size(); ++i) {
            EXPECT_EQ(part[i].scalar_type(), type);
            EXPECT_TRUE(torch::allclose(part[i].to(torch::kFloat),
                                        whole[i].slice(0, begin, end).to(torch::kFloat), tolerance,
                                        tolerance * 10))
                << i << ", residual " << adds << ", relu " << relu;
          }
          EXPECT_TRUE(
              torch::allclose(local->running_mean, norm->running_mean, tolerance, tolerance));
          EXPECT_TRUE(torch::allclose(local->running_var, norm->running_var, tolerance, tolerance));
          auto sums = torch::stack({local->weight.grad(), local->bias.grad()});
          comm->all_reduce(sums, comm::ReduceOp::kSum, "a check");
          EXPECT_TRUE(torch::allclose(sums, torch::stack({norm->weight.grad(), norm->bias.grad()}),
                                      10 * tolerance, 100 * tolerance));
          local->eval();
          const auto x = whole_batch() * (1 + comm->rank());
          const auto evaluated = [&] {
            return ops::batch_norm_relu(
                x, {}, {local->weight, local->bias, local->running_mean, local->running_var},
                {.training = false});
          };
          EXPECT_TRUE(torch::allclose(evaluated(), local(x).relu(), 1e-4, 1e-4));
        });
      }
    }
  }
}

TEST(SyncBatchNormTest, TakesAnExpandedGradient) {
  run_ranks(2, [&](const testing::Comm& comm) {
    auto x = whole_batch().contiguous(torch::MemoryFormat::ChannelsLast).requires_grad_();
    auto norm = fixed_norm();
    const SyncBatchNormScope scope(comm);
    norm(x).sum().backward();
    EXPECT_LT(x.grad().abs().max().item<float>(), 1e-4) << "a sum of normed values is constant";
    EXPECT_FLOAT_EQ(norm->bias.grad()[0].item<float>(), 7 * 5 * 5);
  });
}

TEST(SyncBatchNormTest, LeavesEvaluationAndInstanceNormAlone) {
  run_ranks(2, [&](const testing::Comm& comm) {
    auto x = whole_batch() * (1 + comm->rank());
    auto norm = fixed_norm();
    norm->eval();
    torch::nn::InstanceNorm2d instance(4);
    const auto expected = norm(x);
    const auto expected_instance = instance(x);
    const SyncBatchNormScope scope(comm);
    EXPECT_TRUE(torch::equal(norm(x), expected));
    EXPECT_TRUE(torch::equal(instance(x), expected_instance));
  });
}

TEST(SyncBatchNormTest, EndsWithItsScopeAndDoesNothingAlone) {
  auto x = whole_batch();
  auto a = fixed_norm();
  auto b = fixed_norm();
  torch::Tensor inside;
  {
    const SyncBatchNormScope scope(std::make_shared<comm::Communicator>());
    inside = a(x);
  }
  EXPECT_TRUE(torch::equal(inside, b(x)));
}

}  // namespace
}  // namespace fleet
