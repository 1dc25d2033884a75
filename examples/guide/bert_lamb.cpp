// SPDX-License-Identifier: Apache-2.0
// Guide 003: LAMB over Adam.
//
//   fleetrun --nproc_per_node 2 build/bin/bert_lamb
#include <fleet/fleet.h>

namespace X = fleet;

int train(int argc, char** argv) {
  auto configs = X::parse_train_configs(argc, argv, {}, {.reads = {"beta1", "seed"}});
  auto role = fleet::PaddleCloudRoleMaker{.is_collective = true};
  fleet::init(role);
  torch::manual_seed(configs.seed);

  auto model = X::applications::Bert_base();
  auto loader = model.load_digital_dataset_from_file({
      .data_dir = "./train_data",
      .vocab_path = "./vocab.txt",
      .max_seq_len = 128,
      .batch_size = 16,
  });

  auto dist_strategy = configs.strategy;
  dist_strategy.lamb = true;
  dist_strategy.lamb_configs = {
      .lamb_weight_decay = 0.01,
      .exclude_from_weight_decay = {"layer_norm", ".b_0"},
  };

  auto adam = fleet::optim::Adam(model, {.lr = 0.01, .beta1 = configs.beta1});
  auto optimizer = fleet::distributed_optimizer(std::move(adam), dist_strategy);

  for (const auto& data : loader) {
    const auto report =
        optimizer.minimize(data, [&](const auto& micro_batch) { return model.loss(micro_batch); });
    fleet::log_step(report);
  }
  fleet::shutdown();
  return 0;
}

int main(int argc, char** argv) { return fleet::run_main(train, argc, argv); }
