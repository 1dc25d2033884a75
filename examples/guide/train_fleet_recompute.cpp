// SPDX-License-Identifier: Apache-2.0
// Guide 001: ResNet50, cut for recomputation at the guide's own checkpoints, in mixed precision.
//
//   fleetrun --nproc_per_node 2 build/bin/train_fleet_recompute
#include <fleet/fleet.h>

namespace X = fleet;

int train(int argc, char** argv) {
  auto configs = X::parse_train_configs(argc, argv, {}, {.reads = {"lr", "momentum", "seed"}});
  fleet::init({.is_collective = true});
  torch::manual_seed(configs.seed);

  auto model = X::applications::Resnet50();
  auto loader = model.load_imagenet_from_file("./ImageNet/train.txt");

  const auto checkpoint_idx = {"2a", "2b", "2c", "3a", "3b", "3c", "3d", "4a",
                               "4b", "4c", "4d", "4e", "4f", "5a", "5b", "5c"};
  std::vector<std::string> checkpoints;
  for (const auto* idx : checkpoint_idx)
    checkpoints.push_back(fleet::format("res{}.add.output.5.tmp_0", idx));
  auto strategy = configs.strategy;
  strategy.recompute = true;
  strategy.amp = true;
  strategy.recompute_configs = {
      .checkpoints = checkpoints,
      .enable_offload = false,
      .checkpoint_shape = {},
  };

  auto momentum = fleet::optim::Momentum(model, {.lr = configs.lr, .momentum = configs.momentum});
  auto optimizer = fleet::distributed_optimizer(std::move(momentum), strategy);

  for (const auto& data : loader) {
    const auto report =
        optimizer.minimize(data, [&](const auto& micro_batch) { return model.loss(micro_batch); });
    fleet::log_step(report);
  }
  fleet::shutdown();
  return 0;
}

int main(int argc, char** argv) { return fleet::run_main(train, argc, argv); }
