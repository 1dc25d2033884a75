// SPDX-License-Identifier: Apache-2.0
#include "fleet/train/layer_wise_optimizer.h"

#include "fleet/optim/lamb.h"
#include "fleet/optim/lars.h"

#include "tests/train/small_training.h"

namespace fleet {
namespace {

using namespace testing;  // NOLINT

const auto kSingleRank = [] { return std::make_shared<comm::Communicator>(); };

Tensors train(std::unique_ptr<optim::Optimizer> made, torch::nn::Sequential net,
              const DistributedStrategy& strategy) {
  DistributedOptimizer optimizer(std::move(made), strategy, kSingleRank());
  for (int64_t step = 0; step < 4; ++step) {
    const auto batch = small_batch(16, step);
    optimizer.minimize(batch,
                       [&](const Batch& micro_batch) { return mean_loss(net, micro_batch); });
  }
  return copies(net->parameters());
}

TEST(LayerWiseOptimizerTest, LarsTakesOverWhatMomentumSays) {
  auto net = small_net(true);
  auto other = small_net(true);
  const optim::ParameterGroup head{.names = {"3."}, .lr_scale = 2};
  const auto by_strategy =
      train(std::make_unique<optim::Momentum>(net, optim::MomentumOptions{.lr = 10,
                                                                          .momentum = 0.8,
                                                                          .use_nesterov = true,
                                                                          .max_grad_norm = 0.5,
                                                                          .groups = {head}}),
            net,
            {.lars = true,
             .lars_configs = {.lars_coeff = 0.01f,
                              .lars_weight_decay = 0.02f,
                              .epsilon = 0.125f,
                              .exclude_from_weight_decay = {"0."},
                              .rule = "timm"}});
  const auto by_hand = train(
      std::make_unique<optim::Lars>(other, optim::LarsOptions{.lr = 10,
                                                              .momentum = 0.8,
                                                              .lars_coeff = 0.01f,
                                                              .lars_weight_decay = 0.02f,
                                                              .epsilon = 0.125f,
                                                              .use_nesterov = true,
                                                              .exclude_from_weight_decay = {"0."},
                                                              .max_grad_norm = 0.5,
                                                              .rule = optim::lars_rule("timm"),
                                                              .groups = {head}}),
      other, {});
  expect_equal(by_strategy, by_hand);
}

TEST(LayerWiseOptimizerTest, LambTakesOverWhatAdamSays) {
  auto net = small_net(true);
  auto other = small_net(true);
  const auto by_strategy = train(
      std::make_unique<optim::Adam>(
          net,
          optim::AdamOptions{
              .lr = 0.01, .beta1 = 0.8, .beta2 = 0.95, .epsilon = 1e-5, .max_grad_norm = 0.5}),
      net,
      {.lamb = true,
       .lamb_configs = {
           .lamb_weight_decay = 0.125f, .exclude_from_weight_decay = {"0."}, .rule = "deepspeed"}});
  const auto by_hand = train(std::make_unique<optim::Lamb>(
                                 other, optim::LambOptions{.lr = 0.01,
                                                           .beta1 = 0.8,
                                                           .beta2 = 0.95,
                                                           .epsilon = 1e-5,
                                                           .lamb_weight_decay = 0.125,
                                                           .exclude_from_weight_decay = {"0."},
                                                           .max_grad_norm = 0.5,
                                                           .rule = optim::lamb_rule("deepspeed")}),
                             other, {});
  expect_equal(by_strategy, by_hand);
}

TEST(LayerWiseOptimizerTest, LambTakesOverAdamWAndItsDecay) {
  const auto by_hand = [](double decay) {
    auto net = small_net(true);
    return train(std::make_unique<optim::Lamb>(
                     net,
                     optim::LambOptions{
                         .lr = 0.01, .beta1 = 0.8, .epsilon = 1e-5, .lamb_weight_decay = decay}),
                 net, {});
  };
  const auto by_strategy = [](double decay, const LambConfigs& configs) {
    auto net = small_net(true);
    return train(
        std::make_unique<optim::AdamW>(
            net,
            optim::AdamWOptions{.lr = 0.01, .beta1 = 0.8, .epsilon = 1e-5, .weight_decay = decay}),
        net, {.lamb = true, .lamb_configs = configs});
  };
  expect_equal(by_strategy(0.3, {}), by_hand(0.3));
  expect_equal(by_strategy(0, {}), by_hand(0));
  expect_equal(by_strategy(0.01, {.lamb_weight_decay = 0.25f}), by_hand(0.25));

  auto net = small_net(true);
  const DistributedOptimizer optimizer(
      std::make_unique<optim::AdamW>(net, optim::AdamWOptions{.weight_decay = 0.125}),
      {.lamb = true}, kSingleRank());
  EXPECT_EQ(optimizer.strategy().lamb_configs.lamb_weight_decay, 0.125f) << "what is in force";
}

TEST(LayerWiseOptimizerTest, LeavesBiasesAndNormsOutByDefault) {
  auto net = small_net(true);
  DistributedOptimizer optimizer(small_optimizer("Momentum", net, 1), {.lars = true},
                                 kSingleRank());
  const auto batch = small_batch(16, 0);
  optimizer.minimize(batch, [&](const Batch& micro_batch) { return mean_loss(net, micro_batch); });
  const auto ratios = optimizer.optimizer().trust_ratios();
  ASSERT_EQ(ratios.size(), 2u);
  EXPECT_EQ(ratios[0].name, "0.weight");
  EXPECT_EQ(ratios[1].name, "3.weight");
  for (const auto& item : ratios) {
    EXPECT_NEAR(item.ratio, 0.001 * item.value_norm / (item.update_norm + 0.0005 * item.value_norm),
                1e-6 * item.ratio);
  }
  for (size_t i = 0; i < optimizer.optimizer().settings().size(); ++i) {
    const bool is_matrix = optimizer.arena().spans()[i].parameter.dim() >= 2;
    EXPECT_EQ(optimizer.optimizer().settings()[i].weight_decay > 0, is_matrix);
  }
}

TEST(LayerWiseOptimizerTest, WrongOptimizersAndDoubleDecayAreRefused) {
  auto net = small_net();
  const auto refused = [&](std::unique_ptr<optim::Optimizer> made,
                           const DistributedStrategy& strategy) {
    return error_message_of(
        [&] { DistributedOptimizer(std::move(made), strategy, kSingleRank()); });
  };
  EXPECT_NE(refused(small_optimizer("Adam", net, 0.1), {.lars = true})
                .find("lars is built on Momentum, but the optimizer is Adam"),
            std::string::npos);
  EXPECT_NE(refused(small_optimizer("Momentum", net, 0.1), {.lamb = true})
                .find("lamb is built on Adam or AdamW, but the optimizer is Momentum"),
            std::string::npos);
  EXPECT_NE(
      refused(std::make_unique<optim::Momentum>(net, optim::MomentumOptions{.weight_decay = 0.01}),
              {.lars = true})
          .find("Momentum's own weight_decay of 0.01 would be added to lars_weight_decay"),
      std::string::npos);
  const auto text = refused(
      small_optimizer("Momentum", net, 0.1),
      {.lars = true, .lars_configs = {.exclude_from_weight_decay = {"batch_nrm", "fc_0.b_0"}}});
  EXPECT_NE(text.find("'batch_nrm' is part of no trainable parameter's name"), std::string::npos)
      << text;
  EXPECT_NE(
      text.find("'fc_0.b_0' is part of no trainable parameter's name; biases are called '.bias'"),
      std::string::npos)
      << text;
  EXPECT_NE(refused(small_optimizer("Momentum", net, 0.1),
                    {.lars = true, .lars_configs = {.rule = "paddle"}})
                .find("lars_configs.rule"),
            std::string::npos);
}

TEST(LayerWiseOptimizerTest, TheScheduleSetsTheRateOfEveryUpdate) {
  auto net = small_net();
  DistributedOptimizer optimizer(small_optimizer("Momentum", net, 5), {.lars = true},
                                 kSingleRank());
  EXPECT_EQ(optimizer.lr(), 5);
  optimizer.set_schedule(optim::warmup(2, optim::constant(3)));
  const auto batch = small_batch(8, 0);
  const auto lr = [&] {
    return optimizer
        .minimize(batch, [&](const Batch& micro_batch) { return mean_loss(net, micro_batch); })
        .lr;
  };
  const auto schedule = optim::warmup(2, optim::constant(3));
  for (int64_t update = 0; update < 4; ++update) EXPECT_EQ(lr(), schedule(update));
  optimizer.set_lr(0.5);
  EXPECT_EQ(lr(), 0.5);
}

}  // namespace
}  // namespace fleet
