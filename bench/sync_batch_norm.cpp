// SPDX-License-Identifier: Apache-2.0
#include <ctime>

#include "fleet/applications/resnet.h"
#include "fleet/comm/world.h"
#include "fleet/core/text/format.h"
#include "fleet/optim/momentum.h"
#include "fleet/train/distributed_optimizer.h"

#include "bench/benches.h"

namespace fleet::bench {
namespace {

constexpr int64_t kBatch = 64;  // per rank
constexpr int kUpdates = 5;     // of one measurement
constexpr int kRounds = 40;

struct NormTrainee {
  applications::Resnet net =
      applications::Resnet18({.classes = 10, .width = 16, .channels_last = true});
  DistributedOptimizer optimizer;

  explicit NormTrainee(bool sync)
      : optimizer(distributed_optimizer(optim::Momentum(net, {.lr = 1e-3}),
                                        DistributedStrategy{.sync_batch_norm = sync})) {}

  double cpu_s = 0;  // of this rank, all threads

  void train(const Batch& batch) {
    const auto begin = std::clock();
    for (int i = 0; i < kUpdates; ++i) {
      optimizer.minimize(batch, [&](const Batch& micro_batch) { return net.loss(micro_batch); });
    }
    cpu_s += static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
  }
};

}  // namespace

// Updates of ResNet18 of width 16 on images of 32 pixels: layers so small that each of the 40
// collectives of an update shows. In turn, in the same processes.
std::vector<Row> bench_sync_batch_norm() {
  auto comm = world();
  torch::manual_seed(1);
  NormTrainee own(false);
  NormTrainee synced(true);
  const Batch batch{torch::randn({kBatch, 3, 32, 32}), torch::randint(10, {kBatch})};
  const auto timings = alternate(kRounds, {[&] { synced.train(batch); }, [&] { own.train(batch); }},
                                 [&] { comm->barrier("bench"); });
  const auto per_second = [&](const Timing& timing) {
    return static_cast<double>(kUpdates * kBatch * comm->size()) / timing.median();
  };
  const auto cpu_ms = [](const NormTrainee& trainee) {
    return trainee.cpu_s * 1e3 / (kUpdates * (kRounds + 1));
  };
  const Slowdown slowdown(timings[0], timings[1]);
  return {
      {"ResNet18, width 16, 32 pixels, sync_batch_norm", per_second(timings[0]), "images/s",
       "batch norm of each rank", per_second(timings[1]), 1 / slowdown.middle,
       format("{}; {} | peer {}", slowdown.text(), timings[0].spread(), timings[1].spread())},
      {"the same, CPU time of one rank per update", cpu_ms(synced), "ms", "batch norm of each rank",
       cpu_ms(own), cpu_ms(own) / cpu_ms(synced), "what other processes do counts less here"}};
}

}  // namespace fleet::bench
