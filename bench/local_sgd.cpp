#include "fleet/parallel/local_sgd.h"

#include <chrono>
#include <numeric>

#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/pooling.h>

#include "fleet/comm/world.h"
#include "fleet/core/format.h"
#include "fleet/core/log.h"
#include "fleet/data/data_loader.h"
#include "fleet/data/fashion_mnist.h"
#include "fleet/metrics/accuracy.h"
#include "fleet/optim/momentum.h"
#include "fleet/train/distributed_optimizer.h"

#include "bench/benches.h"
#include "tests/support/two_hosts.h"

namespace fleet::bench {
namespace {

namespace nn = torch::nn;

constexpr int64_t kBatch = 64;    // per rank
constexpr int64_t kUpdates = 64;  // of one timing: a multiple of every interval, as is a quarter
constexpr int kRounds = 2;
constexpr int64_t kTrainingUpdates = 200;
constexpr int kSeeds = 3;
constexpr int kLinkMbit = 100;

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
  log::set_rank(1, worker_num());  // which does not speak
  auto optimizer = distributed_optimizer(optim::Momentum(net, {.weight_decay = 5e-4}), strategy);
  const int64_t up = kTrainingUpdates / 10;
  optimizer.set_schedule(
      optim::warmup(up, optim::cosine({.lr = 0.1, .updates = kTrainingUpdates - up})));
  log::set_rank(worker_index(), worker_num());
  return optimizer;
}

struct Trainee {
  Trainee(const DistributedStrategy& strategy, int64_t seed, const Data& data)
      : train(data, {.batch_size = kBatch, .seed = seed, .rank = worker_index(), .world_size = 2}),
        net((torch::manual_seed(static_cast<uint64_t>(seed)), make_net())),
        optimizer(made_silently(net, strategy)) {}

  void run(int64_t updates) {
    for (const auto& batch : train.epoch(epoch++)) {
      optimizer.minimize(batch, [&](const Batch& part) {
        return nn::functional::cross_entropy(net->forward(part.data), part.target);
      });
      if (--updates == 0) break;
    }
  }

  DataLoader train;
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
  DataLoader loader(
      test,
      {.batch_size = 500, .shuffle = false, .rank = worker_index(), .world_size = worker_num()});
  Accuracy top;
  trainee.net->eval();
  for (const auto& batch : loader.epoch(0)) top.add(trainee.net->forward(batch.data), batch.target);
  all_reduce_sum(top.counts());
  return 100 * top.top(1);
}

double updates_per_second(const Mode& mode, const Data& train) {
  Trainee trainee(mode.strategy, 1, train);
  trainee.run(kUpdates / 4);
  barrier_worker();
  const auto begin = std::chrono::steady_clock::now();
  trainee.run(kUpdates);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  trainee.optimizer.end_epoch();
  return kUpdates / seconds.count();
}

std::string list(const std::vector<double>& values) {
  std::string text;
  for (const double value : values) text += format("{}{:.2f}", text.empty() ? "" : ", ", value);
  return text;
}

double mean(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

bool limit_rate() {
  auto limited =
      torch::tensor({launch::TwoHosts::limit_rate(worker_index(), kLinkMbit) ? 1.0 : 0.0});
  all_reduce_sum(limited);
  return limited.item<double>() == worker_num();
}

Data training_images() { return load_fashion_mnist(kFashionMnistDir, Phase::kTrain); }

}  // namespace

// A net of 0.23 million parameters on Fashion-MNIST, batch 64 on each of two ranks, Momentum with
// warm-up and cosine: test accuracy after 200 updates, over three seeds.
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

// The same trainings on two hosts of which each sends 100 Mbit/s at most: updates per second. The
// link has no delay of its own, since not every kernel can give it one (netem).
std::vector<Row> bench_local_sgd() {
  if (!limit_rate()) {
    log::plain("skipped: `tc` cannot limit the rate of a link here");
    return {};
  }
  const Data train = training_images();
  auto all = modes();
  // Local SGD that never comes to an average.
  all.push_back({"no communication", {.localsgd = true, .localsgd_configs = {.k_steps = 1 << 30}}});
  std::vector<std::vector<double>> speeds(all.size());
  for (int round = 0; round < kRounds; ++round) {
    for (size_t i = 0; i < all.size(); ++i) {
      speeds[i].push_back(updates_per_second(all[i], train));
      log::plain(format("{}: {:.2f} updates/s", all[i].name, speeds[i].back()));
    }
  }
  const auto row = [&](size_t i, size_t peer) -> Row {
    return {all[i].name,
            mean(speeds[i]),
            "1/s",
            all[peer].name,
            mean(speeds[peer]),
            mean(speeds[i]) / mean(speeds[peer]),
            "rounds: " + list(speeds[i])};
  };
  std::vector<Row> rows;
  for (size_t i = 0; i < all.size(); ++i) rows.push_back(row(i, 0));
  rows.push_back(row(all.size() - 2, all.size() - 1));
  return rows;
}

}  // namespace fleet::bench
