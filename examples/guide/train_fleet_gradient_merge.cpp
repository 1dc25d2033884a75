// SPDX-License-Identifier: Apache-2.0
// Guide 002, static graph: four batches of N make one update, as one batch of 4 N would.
//
//   fleetrun --nproc_per_node 2 build/bin/train_fleet_gradient_merge
#include <fleet/fleet.h>

namespace X = fleet;

int train(int argc, char** argv) {
  auto configs = X::parse_train_configs(argc, argv, {}, {.reads = {"lr", "momentum", "seed"}});
  fleet::init({.is_collective = true});
  torch::manual_seed(configs.seed);

  auto model = X::applications::Resnet50();
  auto loader = model.load_imagenet_from_file(
      "./ImageNet/train.txt", {.batch_size = 8, .drop_last = true});  // no rank's is ever empty

  auto strategy = configs.strategy;
  strategy.gradient_merge = true;
  strategy.gradient_merge_configs = {.k_steps = 4, .avg = true};

  auto momentum = fleet::optim::Momentum(model, {.lr = configs.lr, .momentum = configs.momentum});
  auto optimizer = fleet::distributed_optimizer(std::move(momentum), strategy);

  for (const auto& data : loader) {
    const auto report = optimizer.minimize([&] { return model.loss(data); });
    if (report.updated) fleet::log_step(report);
  }
  optimizer.end_epoch();  // updates with what is left of the last four
  fleet::shutdown();
  return 0;
}

int main(int argc, char** argv) { return fleet::run_main(train, argc, argv); }
