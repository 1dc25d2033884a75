// SPDX-License-Identifier: Apache-2.0
// Guide 000: BERT large with a batch that only recomputation makes room for.
//
//   fleetrun --nproc_per_node 2 build/bin/bert_recompute
#include <fleet/fleet.h>

namespace X = fleet;

int train(int argc, char** argv) {
  auto configs = X::parse_train_configs(argc, argv, {}, {.reads = {"lr"}});
  auto role = fleet::PaddleCloudRoleMaker{.is_collective = true};
  fleet::init(role);

  auto model = X::applications::Bert_large();

  auto data_loader = model.load_digital_dataset_from_file({
      .data_dir = "./train_data",
      .vocab_path = "./vocab.txt",
      .max_seq_len = 512,
      .batch_size = 53,
  });

  auto dist_strategy = configs.strategy;
  dist_strategy.recompute = true;
  dist_strategy.recompute_configs = {.checkpoints = model.checkpoints()};

  auto adam = fleet::optim::Adam(model, {.lr = configs.lr});
  auto optimizer = fleet::distributed_optimizer(std::move(adam), dist_strategy);

  for (const auto& data : data_loader) {
    const auto report =
        optimizer.minimize(data, [&](const auto& micro_batch) { return model.loss(micro_batch); });
    fleet::log_step(report);
  }
  fleet::shutdown();
  return 0;
}

int main(int argc, char** argv) { return fleet::run_main(train, argc, argv); }
