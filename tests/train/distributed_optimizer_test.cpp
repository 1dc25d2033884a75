// SPDX-License-Identifier: Apache-2.0
#include "fleet/train/distributed_optimizer.h"

#include <mutex>

#include "tests/train/small_training.h"

namespace fleet {
namespace {

using namespace testing;  // NOLINT

std::unique_ptr<optim::Optimizer> make_optimizer(const std::string& name,
                                                 torch::nn::Sequential net) {
  if (name == "SGD") return std::make_unique<optim::SGD>(net, optim::SgdOptions{.lr = 0.1});
  if (name == "Momentum") {
    return std::make_unique<optim::Momentum>(
        net, optim::MomentumOptions{.lr = 0.1, .weight_decay = 0.01});
  }
  return std::make_unique<optim::Adam>(net, optim::AdamOptions{.lr = 0.01});
}

// Trains with `ranks` ranks that share every batch unevenly; returns rank 0's parameters at the
// end.
std::vector<torch::Tensor> train(int ranks, const std::string& optimizer_name,
                                 DistributedStrategy strategy, bool norm = false) {
  std::vector<torch::Tensor> result;
  std::mutex mutex;
  run_ranks(ranks, [&](const testing::Comm& comm) {
    auto net = small_net(norm);
    DistributedOptimizer optimizer(make_optimizer(optimizer_name, net), strategy, comm);
    for (int64_t step = 0; step < 6; ++step) {
      // The last batch is short, the shares never equal; a norm needs two samples on each rank.
      const int64_t samples = step < 5 ? 13 : norm ? 5 : 3;
      const auto batch = small_batch(samples, step);
      const int64_t begin = samples * comm->rank() / comm->size();
      const int64_t end = samples * (comm->rank() + 1) / comm->size();
      const auto report =
          optimizer.minimize(batch.slice(begin, end),
                             [&](const Batch& micro_batch) { return mean_loss(net, micro_batch); });
      EXPECT_EQ(report.weight, static_cast<double>(samples));
      EXPECT_EQ(report.update, step + 1);
    }
    for (const auto& parameter : net->parameters()) {
      const auto all = comm->all_gather(parameter.detach().contiguous(), "a check");
      for (int rank = 1; rank < comm->size(); ++rank) EXPECT_TRUE(torch::equal(all[0], all[rank]));
    }
    if (comm->rank() == 0) {
      const std::lock_guard lock(mutex);
      for (const auto& parameter : net->parameters()) result.push_back(parameter.detach().clone());
    }
  });
  return result;
}

TEST(DistributedOptimizerTest, RanksWithUnequalSharesTrainAsOneProcess) {
  for (const std::string name : {"SGD", "Momentum", "Adam"}) {
    const auto one = train(1, name, {});
    expect_close(train(2, name, {}), one);
    expect_close(train(4, name, {}), one);  // with 3 samples on 4 ranks, one rank has none
  }
}

TEST(DistributedOptimizerTest, SynchronisedBatchNormTrainsAsOneProcess) {
  const DistributedStrategy strategy{.sync_batch_norm = true};
  expect_close(train(2, "Momentum", strategy, /*norm=*/true),
               train(1, "Momentum", {}, /*norm=*/true), 1e-3);
}

TEST(DistributedOptimizerTest, EveryFusionGivesTheSameGradients) {
  const auto fused = train(2, "Momentum", {});
  expect_close(train(2, "Momentum", {.fuse_all_reduce_ops = false}), fused, 1e-6);
  expect_close(train(2, "Momentum", {.last_comm_group_size_MB = 0.0001f}), fused, 1e-6);
}

TEST(DistributedOptimizerTest, OneProcessEqualsAPlainTrainingLoopBitForBit) {
  auto plain = small_net();
  auto net = small_net();
  DistributedOptimizer optimizer(make_optimizer("SGD", net), {},
                                 std::make_shared<comm::Communicator>());
  for (int64_t step = 0; step < 5; ++step) {
    const auto batch = small_batch(8, step);
    const auto loss = mean_loss(plain, batch);
    plain->zero_grad();
    loss.backward();
    {
      const torch::NoGradGuard no_grad;
      for (auto& parameter : plain->parameters()) parameter.add_(parameter.grad(), -0.1);
    }
    const auto report = optimizer.minimize([&] { return mean_loss(net, batch); });
    EXPECT_EQ(report.loss, loss.item<double>());
  }
  for (size_t i = 0; i < net->parameters().size(); ++i) {
    EXPECT_TRUE(torch::equal(net->parameters()[i], plain->parameters()[i])) << i;
  }
}

TEST(DistributedOptimizerTest, WeightsTokensExactly) {
  // Two ranks with 2 and 9 tokens, as sums, equal one process with all 11.
  const auto batch = small_batch(11, 0);
  const auto sum_loss = [](torch::nn::Sequential net, const Batch& micro_batch) {
    const auto losses = torch::nn::functional::cross_entropy(
        net->forward(micro_batch.data), micro_batch.target,
        torch::nn::functional::CrossEntropyFuncOptions().reduction(torch::kSum));
    return WeightedLoss{.sum = losses, .weight = static_cast<double>(micro_batch.size())};
  };
  std::vector<torch::Tensor> expected;
  for (const int ranks : {1, 2}) {
    run_ranks(ranks, [&](const testing::Comm& comm) {
      auto net = small_net();
      DistributedOptimizer optimizer(make_optimizer("SGD", net), {}, comm);
      const auto part = ranks == 1          ? batch
                        : comm->rank() == 0 ? batch.slice(0, 2)
                                            : batch.slice(2, 11);
      const auto report = optimizer.minimize([&]() -> Loss { return sum_loss(net, part); });
      EXPECT_EQ(report.weight, 11);
      if (comm->rank() != 0) return;
      if (ranks == 1) {
        for (const auto& parameter : net->parameters())
          expected.push_back(parameter.detach().clone());
      } else {
        std::vector<torch::Tensor> got;
        for (const auto& parameter : net->parameters()) got.push_back(parameter.detach());
        expect_close(got, expected, 1e-5);
      }
    });
  }
}

TEST(DistributedOptimizerTest, BadLossesAreNamedAndChangeNothing) {
  auto net = small_net();
  DistributedOptimizer optimizer(make_optimizer("SGD", net), {},
                                 std::make_shared<comm::Communicator>());
  std::vector<torch::Tensor> before;
  for (const auto& parameter : net->parameters()) before.push_back(parameter.detach().clone());
  const auto batch = small_batch(4, 0);
  const auto refused = [&](const std::function<Loss()>& loss) {
    return error_message_of([&] { optimizer.minimize(loss); });
  };
  EXPECT_NE(refused([&] { return net->forward(batch.data); }).find("the loss has 12 elements"),
            std::string::npos);
  EXPECT_NE(
      refused([&] { return torch::zeros({1}); }).find("does not depend on any trainable parameter"),
      std::string::npos);
  EXPECT_NE(refused([&] { return torch::Tensor(); }).find("undefined tensor"), std::string::npos);
  EXPECT_NE(refused([&] {
              return mean_loss(net, batch) / 0.0;
            }).find("the loss is inf at update 1 on rank 0"),
            std::string::npos);
  EXPECT_NE(refused([&] {
              return WeightedLoss{mean_loss(net, batch), -1};
            }).find("the weight of the loss is -1"),
            std::string::npos);
  EXPECT_NE(error_message_of([&] {
              optimizer.minimize(batch.slice(0, 0), [&](const Batch& micro_batch) {
                return mean_loss(net, micro_batch);
              });
            }).find("the batches of all ranks were empty"),
            std::string::npos);
  for (size_t i = 0; i < before.size(); ++i)
    EXPECT_TRUE(torch::equal(net->parameters()[i], before[i]));
  EXPECT_EQ(optimizer.updates(), 0);
  optimizer.minimize([&] { return mean_loss(net, batch); });  // and it goes on
  EXPECT_EQ(optimizer.updates(), 1);
}

TEST(DistributedOptimizerTest, LeavesParametersThatNoRankUsesAloneWhenAsked) {
  run_ranks(2, [](const testing::Comm& comm) {
    auto net = small_net();
    auto spare = torch::nn::Linear(2, 2);
    net->register_module("spare", spare);
    const auto before = spare->weight.detach().clone();
    DistributedOptimizer optimizer(std::make_unique<optim::Momentum>(
                                       net, optim::MomentumOptions{.lr = 0.1, .weight_decay = 0.5}),
                                   {.find_unused_parameters = true}, comm);
    const auto start = spare->weight.detach().clone();
    const auto batch = small_batch(4, comm->rank());
    for (int step = 0; step < 3; ++step) {
      optimizer.minimize(batch, [&](const Batch& micro_batch) {
        auto h = torch::relu(net->ptr<torch::nn::LinearImpl>(0)->forward(micro_batch.data));
        return torch::nn::functional::cross_entropy(net->ptr<torch::nn::LinearImpl>(2)->forward(h),
                                                    micro_batch.target);
      });
    }
    EXPECT_TRUE(torch::equal(spare->weight, start));
  });
}

}  // namespace
}  // namespace fleet
