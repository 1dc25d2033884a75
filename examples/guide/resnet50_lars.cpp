// SPDX-License-Identifier: Apache-2.0
// Guide 003: LARS over Momentum, with norms and biases left out of the decay.
//
//   fleetrun --nproc_per_node 2 build/bin/resnet50_lars
#include <fleet/fleet.h>

namespace X = fleet;

int train(int argc, char** argv) {
  auto configs = X::parse_train_configs(argc, argv, {}, {.reads = {"seed"}});
  auto role = fleet::PaddleCloudRoleMaker{.is_collective = true};
  fleet::init(role);
  torch::manual_seed(configs.seed);

  auto model = X::applications::Resnet50();
  auto loader = model.load_imagenet_from_file("./ImageNet/train.txt");

  auto dist_strategy = configs.strategy;
  dist_strategy.lars = true;
  dist_strategy.lars_configs = {
      .lars_coeff = 0.001,
      .lars_weight_decay = 0.0005,
      .exclude_from_weight_decay = {"batch_norm", ".b_0"},
  };

  auto momentum = fleet::optim::Momentum(model, {.lr = 0.01, .momentum = 0.9});
  auto optimizer = fleet::distributed_optimizer(std::move(momentum), dist_strategy);

  for (const auto& data : loader) {
    const auto report =
        optimizer.minimize(data, [&](const auto& micro_batch) { return model.loss(micro_batch); });
    fleet::log_step(report);
  }
  fleet::shutdown();
  return 0;
}

int main(int argc, char** argv) { return fleet::run_main(train, argc, argv); }
