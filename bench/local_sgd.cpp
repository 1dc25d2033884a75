// SPDX-License-Identifier: Apache-2.0
#include "fleet/parallel/local_sgd.h"

#include <chrono>
#include <cmath>
#include <numeric>
#include <random>
#include <thread>

#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/pooling.h>

#include "fleet/comm/world.h"
#include "fleet/core/log.h"
#include "fleet/core/text/format.h"
#include "fleet/data/data_loader.h"
#include "fleet/data/images/fashion_mnist.h"
#include "fleet/metrics/accuracy.h"
#include "fleet/optim/momentum.h"
#include "fleet/train/distributed_optimizer.h"

#include "bench/benches.h"

namespace fleet::bench {
namespace {

namespace nn = torch::nn;

constexpr int64_t kBatch = 64;    // per rank
constexpr int64_t kUpdates = 64;  // of one timing: a multiple of every interval, as is a quarter
constexpr int kRounds = 2;
constexpr int64_t kTrainingUpdates = int64_t{3} * 468;  // all of the training images, three times
constexpr int kSeeds = 3;

struct Mode {
  std::string name;
  DistributedStrategy strategy;
};

std::vector<Mode> modes() {
  const auto every = [](int k_steps) {
    return DistributedStrategy{.localsgd = true, .localsgd_configs = {.k_steps = k_steps}};
  };
  std::vector<Mode> all = {{"synchronous", {}}};
  for (const int k_steps : {2, 4, 8, 16})
    all.push_back({format("k = {}", k_steps), every(k_steps)});
  all.push_back(
      {"adaptive", {.adaptive_localsgd = true, .adaptive_localsgd_configs = {.init_k_steps = 16}}});
  auto delayed = every(8);
  delayed.localsgd_configs.delayed = true;
  all.push_back({"k = 8, delayed", delayed});
  return all;
}

// 0.23 million parameters: 0.9 MB to be sent, 75 ms at 100 Mbit/s.
nn::Sequential make_net() {
  const auto conv = [](int64_t in, int64_t out) {
    return nn::Conv2d(nn::Conv2dOptions(in, out, 3).padding(1).bias(false));
  };
  return nn::Sequential(conv(1, 16), nn::BatchNorm2d(16), nn::ReLU(), nn::MaxPool2d(2),
                        conv(16, 32), nn::BatchNorm2d(32), nn::ReLU(), nn::MaxPool2d(2),
                        nn::Flatten(), nn::Linear(32 * 7 * 7, 144), nn::ReLU(),
                        nn::Linear(144, 10));
}

using Data = std::shared_ptr<const Dataset>;

// Forty trainings would each print their strategy.
DistributedOptimizer made_silently(nn::Sequential net, const DistributedStrategy& strategy) {
  log::set_rank(1, worker_num());  // a rank that prints nothing
  auto optimizer = distributed_optimizer(optim::Momentum(net, {.weight_decay = 5e-4}), strategy);
  const int64_t up = kTrainingUpdates / 10;
  optimizer.set_schedule(
      optim::warmup(up, optim::cosine({.lr = 0.1, .updates = kTrainingUpdates - up})));
  log::set_rank(worker_index(), worker_num());
  return optimizer;
}

// After an update it does nothing for a while, by chance.
struct Host {
  double pause_chance = 0;
  std::chrono::milliseconds pause{0};
};

struct Trainee {
  Trainee(const DistributedStrategy& strategy, int64_t seed, const Data& data)
      : train(data, {.batch_size = kBatch, .seed = seed}),
        net((torch::manual_seed(static_cast<uint64_t>(seed)), make_net())),
        optimizer(made_silently(net, strategy)) {}

  void run(int64_t updates, const Host& host = {}) {
    std::mt19937 random(7);  // the same pauses whatever the mode
    while (updates > 0) updates -= run_epoch(updates, host, random);
  }

  int64_t run_epoch(int64_t most, const Host& host, std::mt19937& random) {
    int64_t updates = 0;
    for (const auto& batch : train.epoch(epoch++)) {
      optimizer.minimize(batch, [&](const Batch& micro_batch) {
        return nn::functional::cross_entropy(net->forward(micro_batch.data), micro_batch.target);
      });
      if (host.pause_chance > 0 && std::bernoulli_distribution(host.pause_chance)(random)) {
        std::this_thread::sleep_for(host.pause);
      }
      if (++updates == most) break;
    }
    return updates;
  }

  DataLoader<> train;
  nn::Sequential net;
  DistributedOptimizer optimizer;
  int64_t epoch = 0;
};

// In percent of the test images, of which each rank looks at its share.
double accuracy(const Mode& mode, int64_t seed, const Data& train, const Data& test) {
  Trainee trainee(mode.strategy, seed, train);
  trainee.run(kTrainingUpdates);
  trainee.optimizer.end_epoch();
  const torch::NoGradGuard no_grad;
  DataLoader loader(test, {.batch_size = 500, .shuffle = false});
  Accuracy top;
  trainee.net->eval();
  for (const auto& batch : loader.epoch(0)) top.add(trainee.net->forward(batch.data), batch.target);
  all_reduce_sum(top.counts());
  return 100 * top.top(1);
}

double updates_per_second(const Mode& mode, const Data& train, const Host& host) {
  Trainee trainee(mode.strategy, 1, train);
  trainee.run(kUpdates / 4);
  barrier_worker();
  const auto begin = std::chrono::steady_clock::now();
  trainee.run(kUpdates, host);
  const std::chrono::duration<double> own = std::chrono::steady_clock::now() - begin;
  trainee.optimizer.end_epoch();
  const auto slowest = torch::tensor({own.count()}, torch::kDouble);
  world()->all_reduce(slowest, comm::ReduceOp::kMax, "the slowest rank's time");
  return kUpdates / slowest.item<double>();
}

std::string list(const std::vector<double>& values) {
  std::string text;
  for (const double value : values) text += format("{}{:.2f}", text.empty() ? "" : ", ", value);
  return text;
}

double mean(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

Data training_images() { return load_fashion_mnist(kFashionMnistDir, Phase::kTrain); }

}  // namespace

// A net of 0.23 million parameters on Fashion-MNIST, batch 64 on each of two ranks, Momentum with
// warm-up and cosine: test accuracy after three epochs, over three seeds.
std::vector<Row> bench_local_sgd_accuracy() {
  const Data train = training_images();
  const Data test = load_fashion_mnist(kFashionMnistDir, Phase::kTest);
  std::vector<Row> rows;
  double synchronous = 0;
  for (const auto& mode : modes()) {
    std::vector<double> percents;
    for (int64_t seed = 1; seed <= kSeeds; ++seed) {
      percents.push_back(accuracy(mode, seed, train, test));
    }
    if (rows.empty()) synchronous = mean(percents);
    rows.push_back({mode.name, mean(percents), "%", "synchronous", synchronous,
                    mean(percents) / synchronous, "seeds: " + list(percents)});
    log::plain(format("{}: {:.2f} % ({})", mode.name, rows.back().value, rows.back().note));
  }
  return rows;
}

// The same trainings on two hosts with a slow link between them: updates per second of the slower
// one. Then with the second host half as fast, and with one that stands still now and then.
std::vector<Row> bench_local_sgd() {
  const Data train = training_images();
  auto all = modes();
  // Local SGD that never comes to an average.
  all.push_back({"no communication", {.localsgd = true, .localsgd_configs = {.k_steps = 1 << 30}}});
  std::vector<Row> rows;
  const auto measure = [&](const std::string& name, int rounds, const Host& host) {
    const auto own = worker_index() == 1 ? host : Host{};
    std::vector<std::vector<double>> speeds(all.size());
    for (int round = 0; round < rounds; ++round) {
      for (size_t i = 0; i < all.size(); ++i) {
        speeds[i].push_back(updates_per_second(all[i], train, own));
        log::plain(format("{}{}: {:.2f} updates/s", all[i].name, name, speeds[i].back()));
      }
    }
    const auto row = [&](size_t i, size_t peer) -> Row {
      return {all[i].name + name,
              mean(speeds[i]),
              "1/s",
              all[peer].name,
              mean(speeds[peer]),
              mean(speeds[i]) / mean(speeds[peer]),
              "rounds: " + list(speeds[i])};
    };
    for (size_t i = 0; i < all.size(); ++i) rows.push_back(row(i, 0));
    rows.push_back(row(all.size() - 2, all.size() - 1));
    return mean(speeds.back());
  };
  const double alone = measure("", kRounds, {});
  const std::chrono::milliseconds update(std::lround(1e3 / alone));
  measure(", host 2 half as fast", 1, {.pause_chance = 1, .pause = update});
  measure(", host 2 pauses", 1, {.pause_chance = 1.0 / 8, .pause = 8 * update});
  return rows;
}

}  // namespace fleet::bench
