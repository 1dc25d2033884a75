// SPDX-License-Identifier: Apache-2.0
#include "fleet/applications/image_training.h"

#include <algorithm>
#include <cmath>

#include <ATen/Context.h>
#include <torch/nn/module.h>

#include "fleet/comm/world.h"
#include "fleet/core/log.h"
#include "fleet/core/text/format.h"
#include "fleet/core/text/plural.h"
#include "fleet/metrics/weighted_mean.h"
#include "fleet/optim/momentum.h"
#include "fleet/train/distributed_optimizer.h"
#include "fleet/train/program/train_epochs.h"

namespace fleet::applications {
namespace {

void test(const ImageModel& model, DataLoader<Batch>& images, const DistributedOptimizer& optimizer,
          int64_t epoch) {
  const torch::NoGradGuard no_grad;
  const auto autocast = optimizer.autocast();
  WeightedMean loss, acc1, acc5;
  model.handle.module().eval();
  for (const auto& batch : images.epoch(0)) {
    if (batch.size() == 0) continue;
    const auto seen = model.metrics(batch);
    const auto weight = static_cast<double>(batch.size());
    loss.add(seen.loss, weight);
    acc1.add(seen.acc1, weight);
    acc5.add(seen.acc5, weight);
  }
  model.handle.module().train();
  for (auto* mean : {&loss, &acc1, &acc5}) all_reduce_sum(mean->sums());
  log::info("test",
            format("epoch {}: loss {:.5f}, acc1 {:.5f}, acc5 {:.5f}, {}", epoch, loss.value(),
                   acc1.value(), acc5.value(), plural(std::llround(loss.weight()), "image")));
}

}  // namespace

ImageProgram start_image_program(int argc, const char* const* argv, std::vector<FlagGroup> own,
                                 const TrainConfig& defaults, ProgramHelp help) {
  ImageDataOptions images;
  RunOptions run;
  own.push_back({"Data", images});
  own.push_back({"Run", run});
  help.reads = {"lr", "momentum", "batch_size", "epochs", "seed", "snapshots"};
  const auto config = parse_train_configs(argc, argv, own, defaults, help);
  init();
  images = images.resolved();
  at::manual_seed(static_cast<uint64_t>(config.seed + worker_index()));
  return {config, run, images, load_image_data(images, config)};
}

void train_on_images(const ImageModel& model, ImageData& data, double weight_decay,
                     const TrainConfig& config, const RunOptions& run) {
  run.load(model.handle);
  auto optimizer = distributed_optimizer(
      optim::Momentum(model.handle, {.momentum = config.momentum,
                                     .weight_decay = config.strategy.lars ? 0 : weight_decay}),
      config.strategy);
  const int64_t updates = run.updates(config.epochs * data.train.batches_per_epoch());
  const int64_t up = run.warmup_updates(updates);
  optimizer.set_schedule(optim::warmup(
      up, optim::cosine({.lr = config.lr, .updates = std::max<int64_t>(1, updates - up)})));
  Snapshots snapshots(optimizer, config.snapshots, data.train);
  TrainingLog log(run, optimizer.attempts());
  WeightedMean acc1, acc5;
  train_epochs(
      config.epochs, optimizer, log, snapshots,
      [&](int64_t epoch) { return data.train.epoch(epoch); },
      [&](const Batch& batch) {
        const auto report = optimizer.minimize(batch, [&](const Batch& micro_batch) {
          const auto seen = model.metrics(micro_batch);
          acc1.add(seen.acc1, static_cast<double>(micro_batch.size()));
          acc5.add(seen.acc5, static_cast<double>(micro_batch.size()));
          return seen.loss;
        });
        log.step(report, acc1, acc5);
      },
      [&](int64_t epoch) { test(model, data.test, optimizer, epoch); });
  run.save_weights(model.handle);
}

}  // namespace fleet::applications
