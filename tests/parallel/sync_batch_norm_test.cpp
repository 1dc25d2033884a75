// SPDX-License-Identifier: Apache-2.0
#include "fleet/parallel/sync_batch_norm.h"

#include <mutex>

#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/instancenorm.h>

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
