// SPDX-License-Identifier: Apache-2.0
// Guide 002, dynamic graph: gradients add up until the program asks for an update.
//
//   fleetrun --nproc_per_node 2 build/bin/train_dygraph_gradient_merge
#include <fleet/fleet.h>

namespace X = fleet;

int train(int argc, char** argv) {
  auto configs = X::parse_train_configs(argc, argv, {}, {.reads = {"lr", "momentum", "seed"}});
  fleet::init({.is_collective = true});
  torch::manual_seed(configs.seed);

  auto model = X::applications::Resnet50();
  auto train_loader = model.load_imagenet_from_file(
      "./ImageNet/train.txt", {.batch_size = 8, .drop_last = true});  // no rank's is ever empty

  auto momentum = fleet::optim::Momentum(model, {.lr = configs.lr, .momentum = configs.momentum});
  auto optimizer = fleet::distributed_optimizer(std::move(momentum), configs.strategy);

  const int k = 4;
  int batch_id = 0;
  for (const auto& data : train_loader) {
    torch::Tensor avg_loss;
    {
      const auto forward = optimizer.forward();  // amp and recompute, if the flags ask for them
      avg_loss = model.loss(data);
    }
    optimizer.backward(avg_loss);
    if (++batch_id % k == 0) fleet::log_step(optimizer.step());  // and forgets the gradients
  }
  fleet::shutdown();
  return 0;
}

int main(int argc, char** argv) { return fleet::run_main(train, argc, argv); }
