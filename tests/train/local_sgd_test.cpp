// SPDX-License-Identifier: Apache-2.0
// Local SGD in the one update loop, with everything that it may be combined with.
#include <limits>

#include <torch/optim/sgd.h>

#include "tests/support/says.h"
#include "tests/train/block_net.h"
#include "tests/train/small_training.h"

namespace fleet {
namespace {

using namespace testing;  // NOLINT

/// Equal shares of every batch, or all of it, and an average at the end.
struct Training {
  DistributedStrategy strategy = {};
  std::string optimizer = "Momentum";
  double lr = 0.1;
  bool norm = false;
  int steps = 8;
  int ranks = 2;
  bool same_data = false;  // every rank has the whole batch
  std::string name = {};   // for a failure
};

/// Parameters and then buffers of rank 0; all ranks must hold the same.
Tensors train(const Training& setup, std::vector<UpdateReport>* reports = nullptr) {
  Tensors result;
  run_ranks(setup.ranks, [&](const Comm& comm) {
    auto net = small_net(setup.norm);
    DistributedOptimizer optimizer(small_optimizer(setup.optimizer, net, setup.lr), setup.strategy,
                                   comm);
    for (int64_t step = 0; step < setup.steps; ++step) {
      auto batch = small_batch(24, step);
      const int64_t share = 24 / comm->size();
      if (!setup.same_data) batch = batch.slice(comm->rank() * share, (comm->rank() + 1) * share);
      const auto report = optimizer.minimize(
          batch, [&](const Batch& micro_batch) { return mean_loss(net, micro_batch); });
      if (comm->rank() == 0 && reports) reports->push_back(report);
    }
    optimizer.end_epoch();
    auto tensors = copies(net->parameters());
    const auto buffers = copies(net->buffers());
    tensors.insert(tensors.end(), buffers.begin(), buffers.end());
    for (size_t i = 0; i < tensors.size(); ++i) {
      EXPECT_TRUE(same_everywhere(comm, tensors[i])) << i << ", " << setup.name;
    }
    if (comm->rank() == 0) result = tensors;
  });
  return result;
}

DistributedStrategy every(int k_steps, int begin_step = 1) {
  return {.localsgd = true, .localsgd_configs = {.k_steps = k_steps, .begin_step = begin_step}};
}

TEST(LocalSgdTrainingTest, AnAverageAfterEveryUpdateIsSynchronousTraining) {
  for (const int ranks : {2, 3}) {
    for (const auto* optimizer : {"SGD", "Momentum"}) {
      SCOPED_TRACE(std::string(optimizer) + " on " + std::to_string(ranks));
      const Training setup{.optimizer = optimizer, .steps = 20, .ranks = ranks};
      auto local = setup;
      local.strategy = every(1);
      expect_close(train(local), train(setup), 1e-5, 1e-6);
    }
  }
}

TEST(LocalSgdTrainingTest, AlsoOverMergedGradients) {
  for (const bool avg : {true, false}) {
    Training setup{.lr = 0.05, .steps = 10};
    setup.strategy.gradient_merge = true;
    setup.strategy.gradient_merge_configs = {.k_steps = 3, .avg = avg};
    auto local = setup;
    local.strategy.localsgd = true;
    expect_close(train(local), train(setup), 1e-5, 1e-6);
  }
}

TEST(LocalSgdTrainingTest, ReportsSayWhenRanksWereAveraged) {
  std::vector<UpdateReport> reports;
  train({.strategy = every(3, 3), .steps = 9}, &reports);
  std::string synced, every_k;
  for (const auto& report : reports) {
    synced += report.synced ? 'x' : '.';
    every_k += std::to_string(report.sync_every);
    EXPECT_TRUE(report.updated);
  }
  EXPECT_EQ(synced, "....x..x.");  // updates 1 and 2 share gradients; 3 is the first local one
  EXPECT_EQ(every_k, "133333333");
  EXPECT_DOUBLE_EQ(reports[0].weight, 24);  // all ranks
  EXPECT_DOUBLE_EQ(reports[2].weight, 12);  // this one
  EXPECT_DOUBLE_EQ(reports[4].weight, 72);  // all ranks since the last average
}

// `weight` overlaps between averages, so that its sum counts some samples twice.
TEST(LocalSgdTrainingTest, OwnWeightsCountEverySampleOnce) {
  for (const auto& strategy : {DistributedStrategy{}, every(3, 3), every(4, 1)}) {
    std::vector<UpdateReport> reports;
    train({.strategy = strategy, .steps = 9}, &reports);
    double weight = 0;
    int64_t samples = 0;
    for (const auto& report : reports) {
      weight += report.own_weight;
      samples += report.samples;
      EXPECT_TRUE(std::isfinite(report.own_loss) && report.own_loss > 0);
    }
    EXPECT_DOUBLE_EQ(weight, 9 * 12) << "half of 216: the other rank has the other half";
    EXPECT_EQ(samples, 9 * 12);
  }
}

TEST(LocalSgdTrainingTest, PostLocalIsSynchronousUntilItBegins) {
  Training setup{.steps = 5};
  const auto synchronous = train(setup);
  setup.strategy = every(4, 6);
  expect_equal(train(setup), synchronous);
  // One rank's own updates from there on: as each would make them from the common point.
  setup.strategy = every(4, 3);
  EXPECT_FALSE(torch::allclose(train(setup)[0], synchronous[0], 1e-6, 1e-8));
}

// By hand: two models, each with its own share of the batches, and an outer optimizer of torch over
// the first one's parameters after every third update.
Tensors averaged_by_hand(int64_t steps, const torch::optim::SGDOptions& outer_options) {
  std::vector<torch::nn::Sequential> nets = {small_net(), small_net()};
  std::vector<torch::optim::SGD> optimizers;
  for (auto& net : nets) {
    optimizers.emplace_back(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  }
  Tensors common = copies(nets[0]->parameters());
  torch::optim::SGD outer(common, outer_options);
  for (int64_t step = 0; step < steps; ++step) {
    for (size_t rank = 0; rank < 2; ++rank) {
      const auto begin = static_cast<int64_t>(rank) * 12;
      optimizers[rank].zero_grad();
      mean_loss(nets[rank], small_batch(24, step).slice(begin, begin + 12)).backward();
      optimizers[rank].step();
    }
    if (step % 3 != 2) continue;
    const torch::NoGradGuard no_grad;
    for (size_t i = 0; i < common.size(); ++i) {
      const auto average = (nets[0]->parameters()[i] + nets[1]->parameters()[i]) / 2;
      common[i].mutable_grad() = common[i] - average;
    }
    outer.step();
    for (auto& net : nets) {
      for (size_t i = 0; i < common.size(); ++i) net->parameters()[i].copy_(common[i]);
    }
  }
  return common;
}

TEST(LocalSgdTrainingTest, IsEachRanksOwnTrainingAndTheirAverage) {
  expect_close(train({.strategy = every(3), .steps = 9}),
               averaged_by_hand(9, torch::optim::SGDOptions(1.0)), 1e-4, 1e-6);
}

TEST(LocalSgdTrainingTest, NesterovOutsideIsDiLoCo) {
  auto strategy = every(3);
  strategy.localsgd_configs.outer = "nesterov";
  strategy.localsgd_configs.outer_lr = 0.7;
  strategy.localsgd_configs.outer_momentum = 0.9;
  expect_close(train({.strategy = strategy, .steps = 12}),
               averaged_by_hand(12, torch::optim::SGDOptions(0.7).momentum(0.9).nesterov(true)),
               1e-4, 1e-6);
}

// With a constant rate, slow momentum is torch's momentum over the changes.
TEST(LocalSgdTrainingTest, SlowMomentumOutsideIsSlowMo) {
  auto strategy = every(3);
  strategy.localsgd_configs.outer = "slow_momentum";
  expect_close(train({.strategy = strategy, .steps = 12}),
               averaged_by_hand(12, torch::optim::SGDOptions(1.0).momentum(0.5)), 1e-4, 1e-6);
}

// Ranks that see the same samples stay alike, so that local SGD is what one rank does alone,
// whatever else is on.
TEST(LocalSgdTrainingTest, WorksWithTheOtherStrategies) {
  struct Case {
    const char* name;
    void (*add)(Training&);
  };
  const std::vector<Case> cases = {
      {"gradient merge",
       [](Training& t) {
         t.strategy.gradient_merge = true;
         t.strategy.gradient_merge_configs.k_steps = 3;
       }},
      {"gradient merge, summed",
       [](Training& t) {
         t.strategy.gradient_merge = true;
         t.strategy.gradient_merge_configs = {.k_steps = 2, .avg = false};
         t.lr = 0.05;
       }},
      {"lars",
       [](Training& t) {
         t.strategy.lars = true;
         t.strategy.lars_configs.lars_coeff = 0.05f;
         t.lr = 0.5;
       }},
      {"lamb",
       [](Training& t) {
         t.strategy.lamb = true;
         t.optimizer = "Adam";
       }},
      {"bf16", [](Training& t) { t.strategy.amp = true; }},
      {"pure bf16",
       [](Training& t) {
         t.strategy.amp = true;
         t.strategy.amp_configs.use_pure_bf16 = true;
       }},
      {"fp16",
       [](Training& t) {
         t.strategy.amp = true;
         t.strategy.amp_configs.dtype = "fp16";
       }},
      {"averaged state",
       [](Training& t) { t.strategy.localsgd_configs.optimizer_state = "average"; }},
      {"averaged state of Adam",
       [](Training& t) {
         t.strategy.localsgd_configs.optimizer_state = "average";
         t.optimizer = "Adam";
       }},
      {"delayed", [](Training& t) { t.strategy.localsgd_configs.delayed = true; }},
      {"unused parameters allowed", [](Training& t) { t.strategy.find_unused_parameters = true; }},
  };
  for (const auto& item : cases) {
    SCOPED_TRACE(item.name);
    Training setup{.strategy = every(2), .norm = true, .same_data = true, .name = item.name};
    item.add(setup);
    auto alone = setup;
    alone.ranks = 1;
    std::vector<UpdateReport> reports;
    const auto values = train(setup, &reports);
    const bool low = setup.strategy.amp;
    expect_close(values, train(alone), low ? 0.02 : 1e-3, low ? 0.01 : 1e-5);
    EXPECT_EQ(reports.back().update, setup.steps);
  }
}

// Averages change parameters behind LARS's back; its trust ratios must follow.
TEST(LocalSgdTrainingTest, LayerWiseRatesAreThoseOfTheAverage) {
  run_ranks(2, [&](const Comm& comm) {
    auto net = small_net();
    auto strategy = every(1);
    strategy.lars = true;
    DistributedOptimizer optimizer(small_optimizer("Momentum", net, 20), strategy, comm);
    const auto batch = small_batch(8, 3 + comm->rank());
    for (int step = 0; step < 4; ++step) {
      const double norm = net->parameters()[0].norm().item<double>();
      optimizer.minimize(batch,
                         [&](const Batch& micro_batch) { return mean_loss(net, micro_batch); });
      EXPECT_NEAR(optimizer.optimizer().trust_ratios()[0].value_norm, norm, 1e-5 * norm);
    }
    optimizer.end_epoch();
  });
}

TEST(LocalSgdTrainingTest, RecomputeChangesNothing) {
  const BlockTraining plain{.strategy = every(2)};
  auto recomputed = plain;
  recomputed.strategy.recompute = true;
  recomputed.strategy.recompute_configs.checkpoints = {"first", "block.1"};
  const auto expected = train_blocks_on(2, plain);
  const auto outcomes = train_blocks_on(2, recomputed);
  for (size_t rank = 0; rank < 2; ++rank) expect_same(outcomes[rank], expected[rank]);
  expect_equal(outcomes[0].parameters, outcomes[1].parameters);
}

// Overflows are each rank's own; ranks come to the average together all the same.
TEST(LocalSgdTrainingTest, ASkippedUpdateCounts) {
  run_ranks(2, [](const Comm& comm) {
    auto net = small_net();
    auto strategy = every(3);
    strategy.amp = true;
    strategy.amp_configs.dtype = "fp16";
    strategy.amp_configs.decr_every_n_nan_or_inf = 1;
    DistributedOptimizer optimizer(small_optimizer("Momentum", net, 0.1), strategy, comm);
    for (int step = 0; step < 6; ++step) {
      auto batch = small_batch(8, 2 * step + comm->rank());
      const bool overflows = comm->rank() == 1 && (step == 1 || step == 2);
      if (overflows) batch.data.fill_(std::numeric_limits<float>::infinity());
      const auto report = optimizer.minimize(
          batch, [&](const Batch& micro_batch) { return mean_loss(net, micro_batch); });
      EXPECT_EQ(report.skipped, overflows) << step;
      EXPECT_EQ(report.synced, step % 3 == 2) << step;
      if (report.synced) {
        EXPECT_EQ(report.update, step + 1) << "schedules go on together";
        EXPECT_TRUE(std::isfinite(report.loss));
        for (const auto& value : net->parameters()) EXPECT_TRUE(same_everywhere(comm, value));
      }
      if (step == 2) {
        EXPECT_DOUBLE_EQ(report.weight, 4 * 8) << "what was skipped has weight 0";
      }
    }
    EXPECT_EQ(optimizer.skipped_updates(), comm->rank() == 1 ? 2 : 0);
  });
}

TEST(LocalSgdTrainingTest, RanksMayHaveDifferentNumbersOfBatches) {
  for (const bool delayed : {false, true}) {
    run_ranks(3, [&](const Comm& comm) {
      auto net = small_net(/*norm=*/true);
      auto strategy = every(2);
      strategy.localsgd_configs.delayed = delayed;
      DistributedOptimizer optimizer(small_optimizer("Momentum", net, 0.1), strategy, comm);
      for (int epoch = 0; epoch < 2; ++epoch) {
        const int batches = std::array{0, 7, 3}[static_cast<size_t>(comm->rank() + epoch) % 3];
        for (int step = 0; step < batches; ++step) {
          optimizer.minimize(small_batch(8, step + comm->rank()),
                             [&](const Batch& micro_batch) { return mean_loss(net, micro_batch); });
        }
        optimizer.end_epoch();
        for (const auto& value : net->parameters()) EXPECT_TRUE(same_everywhere(comm, value));
        for (const auto& value : net->buffers()) EXPECT_TRUE(same_everywhere(comm, value));
        EXPECT_EQ(optimizer.updates(), 7 * (epoch + 1));
      }
    });
  }
}

TEST(LocalSgdTrainingTest, AnEmptyBatchHasWeightZero) {
  run_ranks(2, [](const Comm& comm) {
    auto net = small_net();
    DistributedOptimizer optimizer(small_optimizer("SGD", net, 0.1), every(2), comm);
    const auto closure = [&](const Batch& micro_batch) { return mean_loss(net, micro_batch); };
    const auto alone = small_net();
    torch::optim::SGD sgd(alone->parameters(), 0.1);
    for (int step = 0; step < 2; ++step) {
      const auto report = optimizer.minimize(small_batch(comm->rank() == 0 ? 8 : 0, step), closure);
      EXPECT_EQ(report.updated, comm->rank() == 0);
      sgd.zero_grad();
      mean_loss(alone, small_batch(8, step)).backward();
      sgd.step();
    }
    expect_close(copies(net->parameters()), copies(alone->parameters()), 1e-5, 1e-6);
  });
}

TEST(LocalSgdTrainingTest, AWindowOfCallsEndsWithTheEpoch) {
  run_ranks(2, [](const Comm& comm) {
    auto net = small_net();
    auto strategy = every(2);
    strategy.gradient_merge = true;
    strategy.gradient_merge_configs.k_steps = 2;
    DistributedOptimizer optimizer(small_optimizer("Momentum", net, 0.1), strategy, comm);
    const int calls = comm->rank() == 0 ? 7 : 4;  // 3.5 updates and 2
    for (int call = 0; call < calls; ++call) {
      optimizer.minimize([&] { return mean_loss(net, small_batch(8, call + comm->rank())); });
    }
    EXPECT_EQ(optimizer.end_epoch().has_value(), comm->rank() == 0);
    for (const auto& value : net->parameters()) EXPECT_TRUE(same_everywhere(comm, value));
    EXPECT_EQ(optimizer.updates(), 4);
  });
}

TEST(LocalSgdTrainingTest, SyncGivesTheAverageInMidWindow) {
  run_ranks(2, [](const Comm& comm) {
    auto net = small_net(/*norm=*/true);
    DistributedOptimizer optimizer(small_optimizer("Momentum", net, 0.1), every(100), comm);
    optimizer.minimize(small_batch(8, comm->rank()),
                       [&](const Batch& micro_batch) { return mean_loss(net, micro_batch); });
    EXPECT_FALSE(same_everywhere(comm, net->parameters()[0]));
    optimizer.sync();
    for (const auto& value : net->parameters()) EXPECT_TRUE(same_everywhere(comm, value));
    for (const auto& value : net->buffers()) EXPECT_TRUE(same_everywhere(comm, value));
  });
}

TEST(LocalSgdTrainingTest, TheAdaptiveIntervalFollowsLossAndRate) {
  run_ranks(2, [](const Comm& comm) {
    auto net = small_net();
    DistributedOptimizer optimizer(
        small_optimizer("Momentum", net, 0.1),
        {.localsgd = true, .localsgd_configs = {.k_steps = 8}, .auto_ = true}, comm);
    EXPECT_TRUE(optimizer.strategy().adaptive_localsgd);
    const auto run = [&](int steps) {
      UpdateReport report;
      for (int step = 0; step < steps; ++step) {
        report = optimizer.minimize(small_batch(8, comm->rank()), [&](const Batch& micro_batch) {
          return mean_loss(net, micro_batch);
        });
      }
      return report.sync_every;
    };
    EXPECT_EQ(run(1), 8);
    const auto settled = run(199);  // it learns the same batch by heart
    EXPECT_LE(settled, 2);
    const auto all = comm->all_gather(torch::tensor({settled}), "a check");
    EXPECT_TRUE(torch::equal(all[0], all[1]));
    optimizer.set_lr(1e-5);
    EXPECT_EQ(run(8), 16) << "a small rate moves little";
    optimizer.end_epoch();
  });
}

TEST(LocalSgdTrainingTest, OnOneRankItIsPlainTraining) {
  Training setup{.ranks = 1};
  const auto plain = train(setup);
  setup.strategy = every(4);
  expect_equal(train(setup), plain);
}

TEST(LocalSgdTrainingTest, NamesAParameterWithoutAGradientOnThisRank) {
  run_ranks(2, [](const Comm& comm) {
    auto net = small_net();
    DistributedOptimizer optimizer(small_optimizer("SGD", net, 0.1), every(2), comm);
    const auto text = error_message_of(
        [&] { optimizer.minimize([&] { return net->ptr(0)->parameters()[0].square().sum(); }); });
    EXPECT_TRUE(says(text, "got no gradient on rank " + std::to_string(comm->rank()), "2.weight"));
  });
}

}  // namespace
}  // namespace fleet
