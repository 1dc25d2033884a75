// SPDX-License-Identifier: Apache-2.0
// Strategies alone, in pairs and all together: whatever the combination, N ranks and k parts train
// as one process with one batch and the same precision and update rule.
#include <cmath>

#include "tests/train/small_training.h"

namespace fleet {
namespace {

using namespace testing;  // NOLINT

struct Ingredient {
  const char* name;
  void (*add)(SmallTraining&);
};

// Change the arithmetic: the reference has them too.
const std::vector<Ingredient> kRules = {
    {"plain", [](SmallTraining&) {}},
    {"lars",
     [](SmallTraining& t) {
       t.strategy.lars = true;
       t.strategy.lars_configs.lars_coeff = 0.05f;
       t.lr = 0.5;  // also of the biases, which have no ratio
     }},
    {"lamb",
     [](SmallTraining& t) {
       t.strategy.lamb = true;
       t.optimizer = "Adam";
     }},
};
const std::vector<Ingredient> kPrecisions = {
    {"fp32", [](SmallTraining&) {}},
    {"bf16", [](SmallTraining& t) { t.strategy.amp = true; }},
    {"fp16",
     [](SmallTraining& t) {
       t.strategy.amp = true;
       t.strategy.amp_configs.dtype = "fp16";
     }},
    {"pure bf16",
     [](SmallTraining& t) {
       t.strategy.amp = true;
       t.strategy.amp_configs.use_pure_bf16 = true;
     }},
};
// Change only how the same sums are made.
const std::vector<Ingredient> kWays = {
    {"no merge", [](SmallTraining&) {}},
    {"merge",
     [](SmallTraining& t) {
       t.strategy.gradient_merge = true;
       t.strategy.gradient_merge_configs.k_steps = 3;
     }},
    {"merge, fp16_allreduce, one all-reduce each",
     [](SmallTraining& t) {
       t.strategy.gradient_merge = true;
       t.strategy.gradient_merge_configs.micro_batch_size = 4;
       t.strategy.fp16_allreduce = true;
       t.strategy.fuse_all_reduce_ops = false;
       t.strategy.find_unused_parameters = true;
     }},
};

/// How far what was learned is from what should have been, as a share of it: the norms of all
/// parameters' changes. Rounding is spread over many numbers and stays small in it; gradients that
/// count for too much or too little do not. A bias before a norm is left out: its gradient is 0 but
/// for rounding, and LAMB makes whole steps of that.
double error_in_what_was_learned(const Tensors& got, const Tensors& expected, bool norm) {
  const auto start = small_net(norm)->parameters();
  EXPECT_EQ(got.size(), start.size());
  double error = 0, learned = 0;
  for (size_t i = 0; i < start.size(); ++i) {
    if (norm && i == 1) continue;
    error += (got[i] - expected[i]).pow(2).sum().item<double>();
    learned += (expected[i] - start[i].detach()).pow(2).sum().item<double>();
  }
  return std::sqrt(error / learned);
}

// At least twice what rounding makes of it, and a tenth of what a wrong weight does.
constexpr double kBound = 1e-4, kLowBound = 0.05;

TEST(CombinationTest, RanksAndPartsTrainAsOneProcessWithOneBatch) {
  for (const auto& rule : kRules) {
    for (const auto& precision : kPrecisions) {
      // Ranks and parts of very unequal sizes: 5 and 20 samples, in parts of 1 to 7.
      SmallTraining setup{.samples = 25, .first_share = 0.2};
      rule.add(setup);
      precision.add(setup);
      const auto expected = train_small(1, setup);
      for (const auto& way : kWays) {
        for (const int ranks : {1, 2}) {
          SCOPED_TRACE(std::string(rule.name) + ", " + precision.name + ", " + way.name + ", " +
                       std::to_string(ranks) + " ranks");
          auto changed = setup;
          way.add(changed);
          const bool low = setup.strategy.amp || changed.strategy.fp16_allreduce;
          const double error =
              error_in_what_was_learned(train_small(ranks, changed), expected, setup.norm);
          EXPECT_LT(error, low ? kLowBound : kBound);
        }
      }
    }
  }
}

// The bounds above are narrow enough: parts that count the same, though one has a fifth of the
// samples, are far outside of them in every precision.
TEST(CombinationTest, AWrongWeightIsFarOutsideOfTheBounds) {
  for (const auto& rule : kRules) {
    for (const auto& precision : kPrecisions) {
      SCOPED_TRACE(std::string(rule.name) + ", " + precision.name);
      SmallTraining setup{.samples = 25, .first_share = 0.2};
      rule.add(setup);
      precision.add(setup);
      const auto expected = train_small(1, setup);
      setup.equal_weights = true;
      const double error = error_in_what_was_learned(train_small(2, setup), expected, false);
      EXPECT_GT(error, 10 * (setup.strategy.amp ? kLowBound : kBound));
    }
  }
}

TEST(CombinationTest, SynchronisedBatchNormWithEverythingElse) {
  for (const auto& rule : kRules) {
    for (const auto& precision : kPrecisions) {
      SCOPED_TRACE(std::string(rule.name) + ", " + precision.name);
      SmallTraining setup{.norm = true, .samples = 25, .first_share = 0.2};
      rule.add(setup);
      precision.add(setup);
      const auto expected = train_small(1, setup);
      setup.strategy.sync_batch_norm = true;
      const bool low = setup.strategy.amp;
      const double error = error_in_what_was_learned(train_small(2, setup), expected, setup.norm);
      EXPECT_LT(error, low ? kLowBound : kBound);
    }
  }
}

TEST(CombinationTest, AllTogetherLearns) {
  for (const int ranks : {1, 2}) {
    std::vector<double> losses;
    run_ranks(ranks, [&](const Comm& comm) {
      auto net = small_net(/*norm=*/true);
      const DistributedStrategy strategy{.amp = true,
                                         .amp_configs = {.dtype = "fp16"},
                                         .gradient_merge = true,
                                         .gradient_merge_configs = {.k_steps = 2},
                                         .lamb = true,
                                         .sync_batch_norm = true,
                                         .fp16_allreduce = true,
                                         .find_unused_parameters = true};
      DistributedOptimizer optimizer(
          std::make_unique<optim::Adam>(net, optim::AdamOptions{.max_grad_norm = 1}), strategy,
          comm);
      optimizer.set_schedule(optim::warmup(5, optim::cosine({.lr = 0.1, .updates = 35})));
      const auto batch = small_batch(16, comm->rank());
      for (int step = 0; step < 40; ++step) {
        const auto report = optimizer.minimize(
            batch, [&](const Batch& micro_batch) { return mean_loss(net, micro_batch); });
        if (comm->rank() == 0) losses.push_back(report.loss);
      }
    });
    EXPECT_LT(losses.back(), 0.5 * losses.front());
  }
}

}  // namespace
}  // namespace fleet
