// SPDX-License-Identifier: Apache-2.0
// Optimizers of LibTorch, and one of a user's own, inside DistributedOptimizer.
#include "fleet/optim/torch_optimizer.h"

#include <torch/nn/utils/clip_grad.h>

#include "fleet/optim/torch_optimizer_name.h"

#include "tests/support/says.h"
#include "tests/train/torch_optimizers.h"

namespace fleet {
namespace {

using namespace testing;  // NOLINT

const auto kSingleRank = [] { return std::make_shared<comm::Communicator>(); };

MakeTorch make_kind(const std::string& name) {
  for (auto& kind : kinds_and_own()) {
    if (kind.name == name) return kind.make;
  }
  return {};
}

constexpr int64_t kSteps = 6;

// A plain training loop, as a user of LibTorch writes it.
Tensors plain(const MakeTorch& make, double max_grad_norm = 0) {
  auto net = small_net();
  const auto optimizer = make({net->parameters()});
  for (int64_t step = 0; step < kSteps; ++step) {
    optimizer->zero_grad();
    mean_loss(net, small_batch(12, step)).backward();
    if (max_grad_norm > 0) torch::nn::utils::clip_grad_norm_(net->parameters(), max_grad_norm);
    optimizer->step();
  }
  return copies(net->parameters());
}

Tensors distributed(int ranks, const MakeTorch& make, const DistributedStrategy& strategy = {},
                    double max_grad_norm = 0) {
  Tensors result;
  run_ranks(ranks, [&](const Comm& comm) {
    auto net = small_net();
    auto wrapped = std::make_unique<optim::TorchOptimizer>(
        net, make({net->parameters()}),
        optim::TorchOptimizerOptions{.max_grad_norm = max_grad_norm});
    DistributedOptimizer optimizer(std::move(wrapped), strategy, comm);
    for (int64_t step = 0; step < kSteps; ++step) {
      const auto batch = small_batch(12, step);
      const int64_t begin = 12 * comm->rank() / comm->size();
      const int64_t end = 12 * (comm->rank() + 1) / comm->size();
      const auto report =
          optimizer.minimize(batch.slice(begin, end),
                             [&](const Batch& micro_batch) { return mean_loss(net, micro_batch); });
      EXPECT_TRUE(report.updated);
      EXPECT_EQ(report.update, step + 1);
    }
    for (const auto& parameter : net->parameters()) {
      EXPECT_TRUE(same_everywhere(comm, parameter));
    }
    if (comm->rank() == 0) result = copies(net->parameters());
  });
  return result;
}

TEST(TorchOptimizerTest, TrainsAsAPlainLoopDoesBitForBit) {
  for (const auto& [name, make] : kinds_and_own()) {
    SCOPED_TRACE(name);
    expect_equal(distributed(1, make), plain(make));
  }
}

TEST(TorchOptimizerTest, MicroBatchesAndRanksGiveTheSameToRounding) {
  const DistributedStrategy merged{.gradient_merge = true,
                                   .gradient_merge_configs = {.k_steps = 3}};
  for (const auto& [name, make] : kinds()) {
    SCOPED_TRACE(name);
    const auto expected = plain(make);
    expect_close(distributed(1, make, merged), expected);
    expect_close(distributed(2, make), expected);
    expect_close(distributed(2, make, merged), expected);
  }
}

TEST(TorchOptimizerTest, ClipsAsTorchDoes) {
  const auto make = make_kind("RMSprop");
  expect_close(distributed(1, make, {}, 0.1), plain(make, 0.1));
  expect_close(distributed(2, make, {}, 0.1), plain(make, 0.1));
}

// With a loss scale and in micro-batches, and also in `grad()` after the update.
TEST(TorchOptimizerTest, SeesTheMeanGradientUnscaled) {
  DistributedStrategy strategy{.amp = true, .gradient_merge = true};
  strategy.amp_configs = {.init_loss_scaling = 1024, .dtype = "fp16"};
  strategy.gradient_merge_configs.k_steps = 2;
  auto net = small_net(), other = small_net();
  const auto sign = std::make_shared<Sign>(std::vector<OptimizerParamGroup>{net->parameters()});
  DistributedOptimizer optimizer(std::make_unique<optim::TorchOptimizer>(net, sign), strategy,
                                 kSingleRank());
  const auto batch = small_batch(12, 0);
  mean_loss(other, batch).backward();
  const auto report = optimizer.minimize(
      batch, [&](const Batch& micro_batch) { return mean_loss(net, micro_batch); });
  ASSERT_TRUE(report.updated);
  EXPECT_EQ(report.loss_scale, 1024);
  ASSERT_EQ(sign->seen.size(), 4u);
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_TRUE(torch::allclose(sign->seen[i], other->parameters()[i].grad(), 0.02, 1e-3)) << i;
    EXPECT_TRUE(torch::equal(sign->seen[i], net->parameters()[i].grad()));
  }
}

TEST(TorchOptimizerTest, LeavesParametersWithoutAGradientAlone) {
  for (const auto& [name, make] : kinds_and_own()) {
    SCOPED_TRACE(name);
    Branched net, other;
    const auto plain_optimizer = make({other->parameters()});
    const auto inner = make({net->parameters()});
    DistributedOptimizer optimizer(std::make_unique<optim::TorchOptimizer>(net, inner),
                                   {.find_unused_parameters = true}, kSingleRank());
    for (int64_t step = 0; step < kSteps; ++step) {
      const auto batch = small_batch(8, step);
      plain_optimizer->zero_grad();
      other->loss(batch, has_branch(step)).backward();
      plain_optimizer->step();
      optimizer.minimize(batch, [&](const Batch& b) { return net->loss(b, has_branch(step)); });
      if (const auto* sign = dynamic_cast<Sign*>(inner.get())) {
        EXPECT_EQ(sign->seen.back().defined(), has_branch(step));
      }
      EXPECT_TRUE(net->branch->bias.grad().defined());
      expect_equal(copies(net->parameters()), copies(other->parameters()));
    }
  }
}

TEST(TorchOptimizerTest, UpdatesTheMastersOfBf16Parameters) {
  DistributedStrategy strategy{.amp = true};
  strategy.amp_configs.use_pure_bf16 = true;
  const auto train = [&](bool by_torch) {
    auto net = small_net();
    std::unique_ptr<optim::Optimizer> made;
    if (by_torch) {
      const torch::optim::SGDOptions options = torch::optim::SGDOptions(0.01).momentum(0.9);
      made = std::make_unique<optim::TorchOptimizer>(net,
                                                     torch::optim::SGD(net->parameters(), options));
    } else {
      made = std::make_unique<optim::Momentum>(net, optim::MomentumOptions{.lr = 0.01});
    }
    DistributedOptimizer optimizer(std::move(made), strategy, kSingleRank());
    for (int64_t step = 0; step < kSteps; ++step) {
      optimizer.minimize(small_batch(12, step),
                         [&](const Batch& micro_batch) { return mean_loss(net, micro_batch); });
    }
    Tensors values;
    for (const auto& span : optimizer.arena().spans()) {
      values.push_back(span.value.clone());
      EXPECT_TRUE(torch::equal(span.parameter, span.value.to(span.parameter.scalar_type())));
    }
    return values;
  };
  expect_close(train(true), train(false), 1e-5, 1e-5);
}

TEST(TorchOptimizerTest, InPlaceWritesToBf16ParametersReachTheirMasters) {
  DistributedStrategy strategy{.amp = true};
  strategy.amp_configs.use_pure_bf16 = true;
  auto net = small_net();
  auto optimizer =
      distributed_optimizer(net, torch::optim::RMSprop(net->parameters(), 1e-6), strategy);
  auto weight = net->parameters()[0];
  {
    const torch::NoGradGuard no_grad;
    weight.fill_(1);
  }
  optimizer.minimize(small_batch(8, 0),
                     [&](const Batch& micro_batch) { return mean_loss(net, micro_batch); });
  EXPECT_TRUE(torch::allclose(weight.to(torch::kFloat), torch::ones_like(weight, torch::kFloat)));
  EXPECT_TRUE(
      torch::allclose(optimizer.arena().spans()[0].value, torch::ones(weight.sizes()), 1e-4, 1e-4));
}

TEST(TorchOptimizerTest, SchedulersOfTorchWorkOnTheObjectThatWasPassed) {
  auto net = small_net(), other = small_net();
  const torch::optim::RMSpropOptions options(0.1);
  torch::optim::RMSprop rmsprop(net->parameters(), options), alone(other->parameters(), options);
  torch::optim::StepLR scheduler(rmsprop, 2, 0.5), alone_scheduler(alone, 2, 0.5);
  auto optimizer = distributed_optimizer(net, rmsprop);
  EXPECT_EQ(optimizer.lr(), 0.1);
  std::vector<double> rates, expected;
  for (int64_t step = 0; step < 6; ++step) {
    const auto report = optimizer.minimize(small_batch(8, step), [&](const Batch& micro_batch) {
      return mean_loss(net, micro_batch);
    });
    rates.push_back(report.lr);
    scheduler.step();
    expected.push_back(alone.param_groups()[0].options().get_lr());
    alone_scheduler.step();
  }
  EXPECT_EQ(rates, expected);
  EXPECT_EQ(rates.back(), 0.025);
  EXPECT_EQ(optimizer.lr(), rmsprop.param_groups()[0].options().get_lr());
}

TEST(TorchOptimizerTest, IsTakenByValueByReferenceAndInPointers) {
  using torch::optim::Adagrad;
  auto net = small_net();
  const auto shared = std::make_shared<Adagrad>(net->parameters());
  EXPECT_EQ(distributed_optimizer(net, shared).optimizer().name(), "torch::optim::Adagrad");
  EXPECT_EQ(shared.use_count(), 1);
  auto moved = distributed_optimizer(net, Adagrad(net->parameters(), 0.5));
  EXPECT_EQ(moved.lr(), 0.5);
  auto unique = distributed_optimizer(net, std::make_unique<Adagrad>(net->parameters(), 0.25));
  EXPECT_EQ(unique.lr(), 0.25);
  auto clipped = distributed_optimizer(
      optim::TorchOptimizer(net, Adagrad(net->parameters()), {.max_grad_norm = 1}));
  EXPECT_EQ(clipped.optimizer().max_grad_norm(), 1);
}

TEST(TorchOptimizerTest, RatesOfAllGroupsMoveInProportion) {
  auto net = small_net();
  const auto parameters = net->parameters();
  const auto group = [&](size_t first, size_t last, double lr) {
    return OptimizerParamGroup({parameters.begin() + long(first), parameters.begin() + long(last)},
                               std::make_unique<torch::optim::RMSpropOptions>(lr));
  };
  torch::optim::RMSprop rmsprop(std::vector<OptimizerParamGroup>{group(0, 2, 0.5), group(2, 4, 2)});
  const auto rates = [&] {
    return std::pair(rmsprop.param_groups()[0].options().get_lr(),
                     rmsprop.param_groups()[1].options().get_lr());
  };
  auto optimizer = distributed_optimizer(net, rmsprop);
  const auto train = [&] {
    optimizer.minimize(small_batch(8, 0),
                       [&](const Batch& micro_batch) { return mean_loss(net, micro_batch); });
  };
  optimizer.set_lr(0.25);
  EXPECT_EQ(rates(), std::pair(0.25, 1.0));
  optimizer.set_lr(0);  // a ratio that is not lost
  EXPECT_EQ(rates(), std::pair(0.0, 0.0));
  optimizer.set_schedule(optim::constant(0.125));
  train();
  EXPECT_EQ(rates(), std::pair(0.125, 0.5));
  rmsprop.param_groups()[1].options().set_lr(0.25);  // a scheduler of torch, say
  optimizer.set_lr(1);
  EXPECT_EQ(rates(), std::pair(1.0, 2.0));
}

TEST(TorchOptimizerTest, LocalSgdAveragesParametersAndLeavesTheStateLocal) {
  const DistributedStrategy strategy{.localsgd = true, .localsgd_configs = {.k_steps = 3}};
  const auto train = [&](bool by_torch) {
    Tensors result;
    run_ranks(2, [&](const Comm& comm) {
      auto net = small_net();
      std::unique_ptr<optim::Optimizer> made =
          std::make_unique<optim::Momentum>(net, optim::MomentumOptions{.lr = 0.05});
      if (by_torch) {
        made = std::make_unique<optim::TorchOptimizer>(net, make_kind("SGD")({net->parameters()}));
      }
      DistributedOptimizer optimizer(std::move(made), strategy, comm);
      for (int64_t step = 0; step < 7; ++step) {
        optimizer.minimize(small_batch(8, step * 2 + comm->rank()),
                           [&](const Batch& micro_batch) { return mean_loss(net, micro_batch); });
      }
      EXPECT_FALSE(same_everywhere(comm, net->parameters()[0]));
      optimizer.end_epoch();
      EXPECT_TRUE(same_everywhere(comm, net->parameters()[0]));
      if (comm->rank() == 0) result = copies(net->parameters());
    });
    return result;
  };
  expect_close(train(true), train(false), 1e-5, 1e-6);
}

TEST(TorchOptimizerTest, WhatCannotWorkIsRefusedInASentence) {
  auto net = small_net(), other = small_net();
  const auto refused = [&](const TorchOptim& inner, const DistributedStrategy& strategy = {}) {
    return error_message_of([&] {
      DistributedOptimizer(std::make_unique<optim::TorchOptimizer>(net, inner), strategy,
                           kSingleRank());
    });
  };
  EXPECT_TRUE(says(refused(std::make_shared<torch::optim::LBFGS>(net->parameters())),
                   "torch::optim::LBFGS evaluates its closure many times per step"));
  const auto rmsprop = std::make_shared<torch::optim::RMSprop>(net->parameters());
  EXPECT_TRUE(says(refused(rmsprop, {.lars = true}),
                   "lars is built on Momentum, but the optimizer is torch::optim::RMSprop"));
  EXPECT_TRUE(says(refused(rmsprop, {.lamb = true}),
                   "lamb is built on Adam or AdamW, but the optimizer is torch::optim::RMSprop"));
  EXPECT_TRUE(says(refused(std::make_shared<torch::optim::RMSprop>(other->parameters())),
                   "tensor 0 of parameter group 0 of torch::optim::RMSprop is no parameter of the "
                   "model"));
  EXPECT_TRUE(says(refused(nullptr), "the torch optimizer is a null pointer"));
  EXPECT_TRUE(says(refused(std::make_shared<torch::optim::SGD>(std::vector<OptimizerParamGroup>{},
                                                               torch::optim::SGDOptions(0.1))),
                   "torch::optim::SGD has no parameter group"));
}

/// Stands for one of another language.
class Adapter : public Sign, public optim::TorchOptimizerName {
 public:
  using Sign::Sign;
  std::string type_name() const override { return "torch.optim.Sign"; }
};

TEST(TorchOptimizerTest, AnAdapterTellsItsName) {
  auto net = small_net();
  EXPECT_EQ(optim::TorchOptimizer(
                net, std::make_shared<Adapter>(std::vector<OptimizerParamGroup>{net->parameters()}))
                .name(),
            "torch.optim.Sign");
}

/// Puts new tensors where the parameters were.
class Replacing : public Sign {
 public:
  using Sign::Sign;
  torch::Tensor step(LossClosure = nullptr) override {
    for (auto& p : param_groups()[0].params()) p.set_data(p.detach() - p.grad());
    return {};
  }
};

TEST(TorchOptimizerTest, AnOptimizerThatReplacesParametersIsNamed) {
  auto net = small_net();
  auto optimizer =
      distributed_optimizer(net, Replacing(std::vector<OptimizerParamGroup>{net->parameters()}));
  EXPECT_TRUE(says(
      error_message_of([&] {
        optimizer.minimize(small_batch(8, 0),
                           [&](const Batch& micro_batch) { return mean_loss(net, micro_batch); });
      }),
      "Replacing replaced the data of '0.weight' instead of writing to it", "update in place"));
}

}  // namespace
}  // namespace fleet
