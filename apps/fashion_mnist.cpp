// SPDX-License-Identifier: Apache-2.0
// The quick start: a small convolution net learns to tell ten kinds of clothing apart.
//
//   fleetrun --nproc_per_node 2 build/bin/fashion_mnist
//   build/bin/fashion_mnist --epochs 1 --lr 0.05
//   build/bin/fashion_mnist --snapshot_dir runs/first   # resumes there when it is started again

#include <fleet/core/text/format.h>
#include <fleet/fleet.h>

#include <torch/nn.h>

namespace {

namespace nn = torch::nn;

struct Options {
  std::string data_dir = fleet::kFashionMnistDir;
};

const fleet::FieldList& fields_of(const Options*) {
  static const fleet::FieldList list{
      "app", {fleet::field<&Options::data_dir>("data_dir", "folder with the four IDX files")}};
  return list;
}

nn::Sequential make_net() {
  const auto conv = [](int64_t in, int64_t out) {
    return nn::Conv2d(nn::Conv2dOptions(in, out, 3).padding(1).bias(false));
  };
  return nn::Sequential(conv(1, 16), nn::BatchNorm2d(16), nn::ReLU(), nn::MaxPool2d(2),
                        conv(16, 32), nn::BatchNorm2d(32), nn::ReLU(), nn::MaxPool2d(2),
                        conv(32, 64), nn::BatchNorm2d(64), nn::ReLU(), nn::Flatten(),
                        nn::Linear(64 * 7 * 7, 10));
}

// Up over the first 15 % of the run, then down along a cosine; with LARS, for the few updates of
// large batches, over the first quarter.
fleet::optim::Schedule schedule(int64_t updates, double peak, bool lars) {
  const int64_t up = updates * (lars ? 25 : 15) / 100;
  return fleet::optim::warmup(up, fleet::optim::cosine({.lr = peak, .updates = updates - up}));
}

// Accuracy on the test images, over all ranks: each tests its shard.
double test_accuracy(nn::Sequential& net, fleet::DataLoader<>& test,
                     const fleet::DistributedOptimizer& optimizer) {
  const torch::NoGradGuard no_grad;
  const auto autocast = optimizer.autocast();
  fleet::Accuracy accuracy;
  net->eval();
  for (const auto& batch : test.epoch(0)) accuracy.add(net->forward(batch.data), batch.target);
  net->train();
  fleet::all_reduce_sum(accuracy.counts());
  return accuracy.top(1);
}

int body(int argc, char** argv) {
  Options own;
  const auto config = fleet::parse_train_configs(
      argc, argv, own, {.lr = 0.1, .momentum = 0.9, .batch_size = 64, .epochs = 4},
      {.about = "trains a small net on Fashion-MNIST",
       .reads = {"lr", "momentum", "batch_size", "epochs", "seed", "snapshots"}});
  fleet::init();
  const int rank = fleet::worker_index(), ranks = fleet::worker_num();
  const fleet::Augmentation augmentation{.flip = true, .seed = config.seed};
  fleet::DataLoader train(
      fleet::load_fashion_mnist(own.data_dir, fleet::Phase::kTrain, augmentation),
      {.batch_size = config.batch_size, .seed = config.seed});
  fleet::DataLoader test(fleet::load_fashion_mnist(own.data_dir, fleet::Phase::kTest),
                         {.batch_size = 500, .shuffle = false});

  torch::manual_seed(config.seed);
  auto net = make_net();
  const bool lars = config.strategy.lars;
  auto optimizer = fleet::distributed_optimizer(
      fleet::optim::Momentum(net, {.momentum = config.momentum,
                                   .weight_decay = lars ? 0 : 5e-4,  // LARS has its own
                                   .use_nesterov = lars}),
      config.strategy);
  const int64_t updates = config.epochs * train.batches_per_epoch();
  if (updates > 0) optimizer.set_schedule(schedule(updates, config.lr, lars));
  fleet::Snapshots snapshots(optimizer, config.snapshots, train);

  for (int64_t epoch = snapshots.epoch(), step = optimizer.attempts(); epoch < config.epochs;
       ++epoch) {
    fleet::Progress progress(fleet::format("epoch {}/{}", epoch + 1, config.epochs),
                             train.dataset().size(), {.enabled = fleet::is_first_worker()});
    for (const auto& batch : train.epoch(epoch)) {
      const auto report = optimizer.minimize(batch, [&](const fleet::Batch& micro_batch) {
        return nn::functional::cross_entropy(net->forward(micro_batch.data), micro_batch.target);
      });
      snapshots.after_update();
      progress.advance(batch.size() * ranks, fleet::format("loss {:.3f}", report.loss));
      if (step++ % 100 == 0) {
        progress.print(
            fleet::step_line({rank, step - 1, report.loss, report.seconds, report.total_seconds}));
      }
    }
    optimizer.end_epoch();  // with local SGD, ranks become one model here
    snapshots.after_epoch();
    progress.finish();
    const double percent = 100 * test_accuracy(net, test, optimizer);
    fleet::log::info("test", fleet::format("epoch {}: top-1 {:.2f} %", epoch + 1, percent));
  }
  snapshots.finish();
  fleet::shutdown();
  return 0;
}

}  // namespace

int main(int argc, char** argv) { return fleet::run_main(body, argc, argv); }
