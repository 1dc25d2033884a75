// SPDX-License-Identifier: Apache-2.0
#include "fleet/parallel/local_sgd.h"

#include <mutex>

#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include "fleet/core/process/stop_request.h"

#include "tests/support/says.h"
#include "tests/support/thread_ranks.h"

namespace fleet {
namespace {

using testing::Comm;
using testing::error_message_of;
using testing::run_ranks;
using testing::same_everywhere;

torch::nn::Sequential make_net() {
  torch::nn::Sequential net(torch::nn::Linear(3, 4), torch::nn::BatchNorm1d(4));
  const torch::NoGradGuard no_grad;
  for (auto& parameter : net->parameters()) {
    parameter.copy_(torch::arange(parameter.numel()).view(parameter.sizes()) * 0.1);
  }
  return net;
}

/// A net whose "updates" add a given number to every parameter.
struct Rank {
  explicit Rank(const Comm& comm, const LocalSgdOptions& options,
                std::vector<torch::Tensor> state = {})
      : local(arena, net, comm, options, std::move(state)) {}

  SyncReport step(double change, const LocalStep& step = {}) {
    move(change);
    return local.after_step(step);
  }
  void move(double change) { arena.groups()[0].values.add_(change); }
  // By how much the first parameter, which begins at 0, has moved.
  double moved() const { return net->parameters()[0][0][0].item<double>(); }

  torch::nn::Sequential net = make_net();
  ParameterArena arena{net};
  LocalSgd local;
};

class LocalSgdTest : public ::testing::TestWithParam<int> {};

TEST_P(LocalSgdTest, AveragesOnEveryKthCallAndLeavesAllRanksAlike) {
  run_ranks(GetParam(), [](const Comm& comm) {
    Rank rank(comm, {.k_steps = 3});
    const double own = 0.01 * (1 + comm->rank());
    const double mean = 0.01 * (1 + comm->size()) / 2;
    for (int window = 1; window <= 3; ++window) {
      EXPECT_FALSE(rank.step(own).synced);
      EXPECT_FALSE(rank.step(own).synced);
      EXPECT_EQ(rank.local.unsynced_steps(), 2);
      EXPECT_TRUE(rank.step(own).synced);
      EXPECT_EQ(rank.local.unsynced_steps(), 0);
      EXPECT_NEAR(rank.moved(), 3 * window * mean, 1e-6);
      EXPECT_TRUE(same_everywhere(comm, rank.arena.groups()[0].values));
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Worlds, LocalSgdTest, ::testing::Values(2, 3, 4));

// Between a rank that is at the end of its epoch and one that is not there is no moment to stop at.
TEST(LocalSgdTest, ARequestToStopIsAgreedOnWhereAllRanksAreAtTheSamePlace) {
  const StopSignals signals;  // forgets the request in the end
  run_ranks(2, [](const Comm& comm) {
    Rank rank(comm, {.k_steps = 2});
    rank.step(1);
    EXPECT_FALSE(rank.step(1).stop);
    comm->barrier("nobody was asked so far");
    request_stop();
    if (comm->rank() == 1) {
      rank.step(1);
      EXPECT_FALSE(rank.step(1).stop) << "rank 0 has ended its epoch";
    }
    EXPECT_TRUE(rank.local.end_epoch().stop);
    rank.step(1);
    EXPECT_TRUE(rank.step(1).stop);
  });
}

TEST(LocalSgdTest, RanksAreWeightedByWhatTheyLearnedFrom) {
  run_ranks(2, [](const Comm& comm) {
    Rank rank(comm, {.k_steps = 2});
    const bool first = comm->rank() == 0;
    rank.step(first ? 1 : 5, {.weight = first ? 3.0 : 1.0, .loss = first ? 2.0 : 6.0});
    // The other one skips an update, which counts with weight 0.
    const auto report =
        first ? rank.step(1, {.weight = 3, .loss = 2}) : rank.step(0, {.weight = 0, .loss = 1e9});
    EXPECT_TRUE(report.synced);
    EXPECT_NEAR(rank.moved(), (6 * 2 + 1 * 5) / 7.0, 1e-6);
    EXPECT_DOUBLE_EQ(report.weight, 7);
    EXPECT_DOUBLE_EQ(report.loss, (6 * 2 + 1 * 6) / 7.0);
  });
}

TEST(LocalSgdTest, WithoutAnythingLearnedNothingMoves) {
  run_ranks(2, [](const Comm& comm) {
    Rank rank(comm, {.outer = {.rule = OuterRule::kNesterov}});
    EXPECT_TRUE(rank.step(comm->rank(), {.weight = 1}).synced);
    const double before = rank.moved();
    EXPECT_TRUE(rank.step(0, {.weight = 0}).synced);
    rank.local.sync();
    EXPECT_EQ(rank.moved(), before) << "the outer momentum rests too";
  });
}

TEST(LocalSgdTest, BuffersAreAveragedWithTheParameters) {
  run_ranks(2, [](const Comm& comm) {
    Rank rank(comm, {});
    const auto buffers = rank.net->buffers();  // mean, variance, count
    buffers[0].fill_(comm->rank());            // mean 0.5, variance of the means 0.25
    buffers[1].fill_(2 + comm->rank());        // mean 2.5
    buffers[2].fill_(comm->rank());
    rank.step(0);
    EXPECT_EQ(buffers[0][0].item<float>(), 0.5f);
    EXPECT_EQ(buffers[1][0].item<float>(), 2.75f);
    EXPECT_EQ(buffers[2].item<int64_t>(), 1);
  });
}

TEST(LocalSgdTest, BeginsAtItsStepAndLeavesEarlierOnesAlone) {
  run_ranks(2, [](const Comm& comm) {
    Rank rank(comm, {.k_steps = 2, .begin_step = 3});
    for (int step = 1; step <= 2; ++step) {
      EXPECT_FALSE(rank.local.is_local()) << step;
      if (comm->rank() == 0) {
        EXPECT_FALSE(rank.local.end_epoch().synced) << "nobody is asked";
      }
      EXPECT_FALSE(rank.step(1).synced);  // as if gradients had been shared
    }
    EXPECT_TRUE(rank.local.is_local());
    rank.local.before_step();
    EXPECT_FALSE(rank.step(comm->rank()).synced);
    EXPECT_TRUE(rank.step(comm->rank()).synced);
    EXPECT_NEAR(rank.moved(), 3, 1e-6);
  });
}

TEST(LocalSgdTest, ARankWithFewerBatchesWaitsForTheOthersWithWeightZero) {
  run_ranks(3, [](const Comm& comm) {
    Rank rank(comm, {.k_steps = 4});
    const int steps = 7 + comm->rank() * 5;  // 7, 12, 17
    for (int step = 0; step < steps; ++step) rank.step(0.1, {.updates = step + 1});
    const auto report = rank.local.end_epoch();
    EXPECT_TRUE(report.all_ended);
    EXPECT_EQ(report.updates, 17);
    EXPECT_TRUE(same_everywhere(comm, rank.arena.groups()[0].values));
    // 4 by all; then 3, 4, 4 of weights 3, 4, 4; then 4 by two; then 4 and 1 by the last.
    EXPECT_NEAR(rank.moved(), 0.1 * (4 + 41.0 / 11 + 4 + 4 + 1), 1e-5);
    EXPECT_EQ(rank.local.state().step, 17);
    // And the next epoch finds them together.
    for (int step = 0; step < 4; ++step) rank.step(0.1);
    EXPECT_EQ(rank.local.unsynced_steps(), 0);
    EXPECT_TRUE(same_everywhere(comm, rank.arena.groups()[0].values));
  });
}

TEST(LocalSgdTest, DelayedAveragesArriveOneWindowLate) {
  run_ranks(2, [](const Comm& comm) {
    Rank rank(comm, {.k_steps = 2, .delayed = true});
    const double own = comm->rank() == 0 ? 1 : 3;  // in a step
    // x <- x_now + (average - what was sent), by hand for both ranks.
    std::array<double, 2> x = {}, sent = {};
    double average = 0;
    for (int window = 1; window <= 4; ++window) {
      EXPECT_FALSE(rank.step(own).synced);
      EXPECT_EQ(rank.step(own).synced, window > 1);
      for (int r = 0; r < 2; ++r) x[r] += 2 * (r == 0 ? 1 : 3);
      if (window > 1) {
        for (int r = 0; r < 2; ++r) x[r] += average - sent[r];
      }
      sent = x;
      average = (x[0] + x[1]) / 2;
      EXPECT_NEAR(rank.moved(), x[static_cast<size_t>(comm->rank())], 1e-4) << window;
    }
    EXPECT_TRUE(
        says(error_message_of([&] { rank.local.state(); }), "a delayed average is under way"));
    rank.local.sync();
    EXPECT_NEAR(rank.moved(), average, 1e-4);
    EXPECT_NEAR(rank.moved(), 16, 1e-4);
    EXPECT_TRUE(same_everywhere(comm, rank.arena.groups()[0].values));
    EXPECT_EQ(rank.local.unsynced_steps(), 0);
  });
}

TEST(LocalSgdTest, AnEpochThatEndsWithADelayedWindowEndsExactly) {
  run_ranks(2, [](const Comm& comm) {
    Rank rank(comm, {.k_steps = 2, .delayed = true});
    for (int step = 0; step < 4; ++step) {
      rank.net->buffers()[0].add_(0.3 * (1 + comm->rank()));
      rank.step(0.1 * (1 + comm->rank()) + 0.7 * step);
    }
    rank.local.end_epoch();  // nothing was done since the last average was sent
    EXPECT_TRUE(same_everywhere(comm, rank.arena.groups()[0].values));
    for (const auto& buffer : rank.net->buffers()) EXPECT_TRUE(same_everywhere(comm, buffer));
  });
}

TEST(LocalSgdTest, DelayedEpochsEndTogetherToo) {
  run_ranks(2, [](const Comm& comm) {
    Rank rank(comm, {.k_steps = 2, .outer = {.rule = OuterRule::kSlowMomentum}, .delayed = true});
    for (int epoch = 0; epoch < 3; ++epoch) {
      const int steps = comm->rank() == epoch % 2 ? 9 : 4;
      for (int step = 0; step < steps; ++step) {
        rank.step(0.1 * (1 + comm->rank()) + 0.03 * step, {.lr = 0.1});
      }
      rank.local.end_epoch();
      EXPECT_TRUE(same_everywhere(comm, rank.arena.groups()[0].values)) << epoch;
      for (const auto& buffer : rank.net->buffers()) EXPECT_TRUE(same_everywhere(comm, buffer));
    }
  });
}

TEST(LocalSgdTest, OptimizerStateIsLocalAveragedOrReset) {
  const auto after_a_window = [](StateAtSync what, const Comm& comm) {
    auto state = torch::full({3}, 1.0 + 2 * comm->rank());
    Rank rank(comm, {.optimizer_state = what}, {state});
    rank.step(0, {.weight = comm->rank() == 0 ? 3.0 : 1.0});
    return state[0].item<double>();
  };
  run_ranks(2, [&](const Comm& comm) {
    EXPECT_EQ(after_a_window(StateAtSync::kLocal, comm), 1 + 2 * comm->rank());
    EXPECT_EQ(after_a_window(StateAtSync::kAverage, comm), 1.5);
    EXPECT_EQ(after_a_window(StateAtSync::kReset, comm), 0);
  });
}

TEST(LocalSgdTest, TheIntervalIsOneNumberForAllRanks) {
  run_ranks(2, [](const Comm& comm) {
    Rank rank(comm, {.adaptive = AdaptiveIntervalOptions{.init_k_steps = 8, .loss_smoothing = 0}});
    const auto window = [&](double loss, double lr) {
      for (int step = rank.local.k_steps(); step > 0; --step) {
        rank.step(0, {.loss = loss * (0.5 + comm->rank()), .lr = lr});  // means of 0.5 and 1.5
      }
      return rank.local.k_steps();
    };
    EXPECT_EQ(rank.local.k_steps(), 8);
    EXPECT_EQ(window(4, 0.1), 8);
    EXPECT_EQ(window(1, 0.1), 4);
    EXPECT_EQ(window(0.25, 0.1), 2);
    EXPECT_EQ(window(0.25, 0.1 / 16), 8);
  });
}

TEST(LocalSgdTest, WeightsLoadedBetweenWindowsAreWhereTheNextOneBegins) {
  run_ranks(2, [](const Comm& comm) {
    Rank rank(comm, {.outer = {.rule = OuterRule::kNesterov, .lr = 1, .momentum = 0.5}});
    rank.net->parameters()[0].data().add_(100);
    rank.local.before_step();
    rank.step(1);
    EXPECT_NEAR(rank.moved(), 101.5, 1e-4);  // 1 + 0.5 * 1 from 100
  });
}

TEST(LocalSgdTest, ItsStateResumesWhereItStopped) {
  run_ranks(2, [](const Comm& comm) {
    const LocalSgdOptions options{
        .k_steps = 3, .outer = {.rule = OuterRule::kNesterov, .lr = 0.7, .momentum = 0.9}};
    Rank rank(comm, options);
    Rank resumed(comm, options);
    const auto run = [&](Rank& of, int from, int to) {
      for (int step = from; step < to; ++step) of.step(0.01 * step * (1 + comm->rank()));
    };
    run(rank, 0, 8);  // in the middle of a window
    resumed.local.set_state(rank.local.state());
    resumed.arena.groups()[0].values.copy_(rank.arena.groups()[0].values);
    run(rank, 8, 14);
    run(resumed, 8, 14);
    EXPECT_TRUE(torch::equal(rank.arena.groups()[0].values, resumed.arena.groups()[0].values));
    rank.local.end_epoch();
    resumed.local.end_epoch();
    EXPECT_TRUE(torch::equal(rank.arena.groups()[0].values, resumed.arena.groups()[0].values));
  });
}

TEST(LocalSgdTest, ParametersOfLowPrecisionStayAlikeToo) {
  run_ranks(2, [](const Comm& comm) {
    auto net = make_net();
    net->to(torch::kBFloat16);
    ParameterArena arena(net);
    LocalSgd local(arena, net, comm, {.k_steps = 2});
    for (int step = 0; step < 6; ++step) {
      arena.groups()[0].values.add_(0.013 * (1 + comm->rank()));
      local.after_step();
    }
    EXPECT_TRUE(same_everywhere(comm, arena.groups()[0].values));
    EXPECT_NEAR(net->parameters()[0][0][0].item<double>(), 6 * 0.013 * 1.5, 0.005);
  });
}

TEST(LocalSgdTest, RefusesWhatCannotBe) {
  run_ranks(1, [](const Comm& comm) {
    const auto error = [&](const LocalSgdOptions& options) {
      return error_message_of([&] { Rank rank(comm, options); });
    };
    EXPECT_TRUE(says(error({.k_steps = 0}), "k_steps is 0"));
    EXPECT_TRUE(says(error({.begin_step = 0}), "begin_step is 0"));
    EXPECT_TRUE(says(error({.optimizer_state = StateAtSync::kAverage, .delayed = true}),
                     "a delayed average of the optimizer's state"));
  });
}

}  // namespace
}  // namespace fleet
