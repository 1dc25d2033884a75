// SPDX-License-Identifier: Apache-2.0
// Guide 004: local SGD whose interval adapts: parameters are averaged, not gradients.
//
//   fleetrun --nproc_per_node 2 build/bin/resnet50_localsgd
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
  dist_strategy.localsgd = true;
  dist_strategy.auto_ = true;  // `auto` is a word of C++
  dist_strategy.localsgd_configs = {
      .k_steps = 1,
  };

  auto sgd = fleet::optim::SGD(model, {.lr = 0.01});
  auto optimizer = fleet::distributed_optimizer(std::move(sgd), dist_strategy);

  for (const auto& data : loader) {
    const auto report =
        optimizer.minimize(data, [&](const auto& micro_batch) { return model.loss(micro_batch); });
    fleet::log_step(report);
  }
  optimizer.end_epoch();  // all ranks hold one model again
  fleet::shutdown();
  return 0;
}

int main(int argc, char** argv) { return fleet::run_main(train, argc, argv); }
