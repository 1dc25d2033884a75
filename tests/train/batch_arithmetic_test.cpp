// SPDX-License-Identifier: Apache-2.0
#include "fleet/train/update/batch_arithmetic.h"

#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>

#include "fleet/optim/sgd.h"
#include "fleet/train/distributed_optimizer.h"

#include "tests/support/says.h"
#include "tests/train/small_training.h"

namespace fleet {
namespace {

WindowSamples window_of(const std::vector<int64_t>& micro_batches) {
  WindowSamples window;
  for (const auto samples : micro_batches) window.add(samples);
  return window;
}

TEST(BatchArithmeticTest, SaysHowAGlobalBatchComesAbout) {
  EXPECT_EQ((BatchArithmetic{.own = window_of({64}), .global_samples = 64}.text()),
            "global batch 64 = micro-batch 64 x 1 accumulated x 1 rank");
  EXPECT_TRUE(says(BatchArithmetic{.own = window_of(std::vector<int64_t>(16, 256)),
                                   .global_samples = 8192,
                                   .k_steps = 16,
                                   .ranks = 2}
                       .text(),
                   "global batch 8192 = micro-batch 256 x 16 accumulated x 2 ranks; k_steps 16 "
                   "splits the batch of 4096 on each rank (in the guide N becomes 16 N: "));
}

TEST(BatchArithmeticTest, UnequalSharesAreNotSaidToBeAProduct) {
  BatchArithmetic unequal{.own = window_of({7, 6}), .global_samples = 25, .ranks = 2};
  EXPECT_EQ(unequal.text(),
            "global batch 25 on 2 ranks; on this one 13 = 2 micro-batches of 6 or 7");
  unequal.own = window_of({3, 9, 1});
  EXPECT_EQ(unequal.text(),
            "global batch 25 on 2 ranks; on this one 13 = 3 micro-batches of 1 to 9");
  unequal.own = window_of({13});
  EXPECT_EQ(unequal.text(), "global batch 25 on 2 ranks; on this one 13 = 1 micro-batch of 13");
}

TEST(BatchArithmeticTest, CallsAccumulateAsInTheGuide) {
  const auto unknown = window_of({0, 0, 0, 0});
  EXPECT_EQ(
      (BatchArithmetic{.form = BatchForm::kCalls, .own = unknown, .k_steps = 4, .ranks = 2}.text()),
      "global batch = micro-batch x 4 accumulated x 2 ranks = 8 micro-batches; k_steps 4 "
      "accumulates 4 calls of minimize(closure): a micro-batch of N samples makes a batch of 4 N "
      "on each rank, as in the guide");
  EXPECT_EQ((BatchArithmetic{.form = BatchForm::kCalls, .own = window_of({0})}.text()),
            "global batch = micro-batch x 1 accumulated x 1 rank = 1 micro-batch");
  const std::string merges =
      "; step() merges 4 calls of backward(loss): micro-batches of N samples make a batch of 4 N "
      "on each rank, as in the guide";
  EXPECT_EQ((BatchArithmetic{.form = BatchForm::kBackward, .own = unknown, .ranks = 2}.text()),
            "global batch = micro-batch x 4 accumulated x 2 ranks = 8 micro-batches" + merges);
  EXPECT_EQ((BatchArithmetic{.form = BatchForm::kBackward,
                             .own = window_of({8, 8, 8, 8}),
                             .global_samples = 64,
                             .ranks = 2}
                 .text()),
            "global batch 64 = micro-batch 8 x 4 accumulated x 2 ranks" + merges);
}

TEST(BatchArithmeticTest, WithLocalSgdABatchIsARanksOwn) {
  BatchArithmetic local{.own = window_of({13}), .ranks = 2, .is_local = true};
  const std::string rest = "; with local SGD each of 2 ranks updates with its own";
  EXPECT_EQ(local.text(), "batch 13 of this rank = micro-batch 13 x 1 accumulated" + rest);
  local.own = window_of({7, 6});
  EXPECT_EQ(local.text(), "batch 13 of this rank = 2 micro-batches of 6 or 7" + rest);
  local.own = window_of({0, 0});
  EXPECT_EQ(local.text(), "batch of each rank = micro-batch x 2 accumulated" + rest);
}

class BatchLineTest : public ::testing::Test {
 protected:
  DistributedOptimizer optimizer(const DistributedStrategy& strategy) {
    return distributed_optimizer(optim::SGD(net_, {.lr = 0.1}), strategy);
  }
  Loss loss(const Batch& batch) { return net_->forward(batch.data).square().mean(); }

  // The lines about batches that `body` prints.
  static std::string printed(const std::function<void()>& body) {
    ::testing::internal::CaptureStdout();
    body();
    std::istringstream lines(::testing::internal::GetCapturedStdout());
    std::string found;
    for (std::string line; std::getline(lines, line);) {
      if (line.starts_with("[batch] ")) found += line + "\n";
    }
    return found;
  }

  // What rank 0 of two prints, with 13 and 12 samples: by `train`, which has the batch of a rank.
  using Train =
      std::function<UpdateReport(DistributedOptimizer&, torch::nn::Linear&, const Batch&)>;
  std::string printed_on_two_ranks(const DistributedStrategy& strategy, const Train& train) {
    return printed([&] {
      testing::run_ranks(2, [&](const testing::Comm& comm) {
        torch::nn::Linear net(4, 2);
        DistributedOptimizer training(
            std::make_unique<optim::SGD>(net, optim::SgdOptions{.lr = 0.1}), strategy, comm);
        const Batch whole{torch::ones({25, 4}), torch::ones({25})};
        const auto own = comm->rank() == 0 ? whole.slice(0, 13) : whole.slice(13, 25);
        const auto report = train(training, net, own);
        EXPECT_TRUE(report.updated);
        training.end_epoch();
      });
    });
  }

  struct Generator : torch::nn::LinearImpl {
    using LinearImpl::LinearImpl;
  };
  torch::nn::Linear net_{4, 2};
  std::shared_ptr<Generator> generator_ = std::make_shared<Generator>(4, 2);
  const Batch batch_{torch::ones({24, 4}), torch::ones({24})};
  const DistributedStrategy merge_{.gradient_merge = true,
                                   .gradient_merge_configs = {.k_steps = 4}};
};

TEST_F(BatchLineTest, ComesOnceWithTheFirstUpdateOfASplitBatch) {
  const auto text = printed([&] {
    auto training = optimizer(merge_);
    for (int i = 0; i < 3; ++i) {
      training.minimize(batch_, [&](const Batch& micro_batch) { return loss(micro_batch); });
    }
  });
  EXPECT_TRUE(text.starts_with("[batch] global batch 24 = micro-batch 6 x 4 accumulated x 1 rank;"))
      << text;
  EXPECT_EQ(std::ranges::count(text, '\n'), 1) << text;
}

// In a run that is long the first update may be hours away.
TEST_F(BatchLineTest, ComesOnceWithTheFirstOfTheCallsThatAccumulate) {
  auto training = optimizer(merge_);
  const auto call = [&] { training.minimize([&] { return loss(batch_); }); };
  const auto text = printed(call);
  EXPECT_TRUE(
      text.starts_with("[batch] global batch = micro-batch x 4 accumulated x 1 rank = 4 "
                       "micro-batches; k_steps 4 accumulates 4 calls of minimize(closure)"))
      << text;
  EXPECT_EQ(std::ranges::count(text, '\n'), 1) << text;
  EXPECT_EQ(training.updates(), 0);
  EXPECT_EQ(printed([&] {
              for (int i = 0; i < 9; ++i) call();
              training.end_epoch();
            }),
            "");
}

// A program may train several models: each line says whose it is. Alone, there is nothing to say.
TEST_F(BatchLineTest, OfSeveralOptimizersSaysWhoseItIs) {
  const auto generator = std::make_shared<Generator>(4, 2);
  auto own = std::make_unique<DistributedOptimizer>(optimizer({}));
  auto other = distributed_optimizer(optim::Momentum(generator, {.lr = 0.1}));
  const auto step = [&](DistributedOptimizer& training, torch::nn::LinearImpl& net) {
    training.minimize(batch_,
                      [&](const Batch& b) -> Loss { return net.forward(b.data).square().mean(); });
  };
  ::testing::internal::CaptureStdout();
  for (int i = 0; i < 2; ++i) {
    step(*own, *net_);
    step(other, *generator);
  }
  auto text = ::testing::internal::GetCapturedStdout();
  EXPECT_TRUE(says(text, "[batch] SGD of Linear: global batch 24 = ",
                   "[batch] Momentum of Generator: global batch 24 = ",
                   "[memory] SGD of Linear: plain training takes ",
                   "[memory] Momentum of Generator: plain training takes "));
  auto same = distributed_optimizer(optim::Momentum(generator_, {.lr = 0.1}));
  EXPECT_TRUE(printed([&] {
                step(same, *generator_);
              }).starts_with("[batch] Momentum of Generator (2 of 2): global batch 24 = "));
  own.reset();
  auto alone = printed_on_two_ranks({}, [](auto& training, auto& net, const Batch& batch) {
    return training.minimize(
        batch, [&](const Batch& b) -> Loss { return net->forward(b.data).square().mean(); });
  });
  EXPECT_TRUE(alone.starts_with("[batch] global batch 25 on 2 ranks")) << alone;
}

TEST_F(BatchLineTest, OfCallsIsInMicroBatchesSinceNobodyTellsTheirSamples) {
  const auto calls = [](int count) {
    return [count](DistributedOptimizer& training, torch::nn::Linear& net, const Batch& own) {
      UpdateReport report;
      for (int i = 0; i < count; ++i) {
        // Its weight is that of four tokens a sample.
        report = training.minimize([&] {
          return WeightedLoss{.sum = net->forward(own.data).square().sum(),
                              .weight = 4.0 * static_cast<double>(own.size())};
        });
      }
      return report;
    };
  };
  EXPECT_TRUE(
      printed_on_two_ranks({}, calls(1))
          .starts_with(
              "[batch] global batch = micro-batch x 1 accumulated x 2 ranks = 2 micro-batches\n"));
  EXPECT_TRUE(printed_on_two_ranks(merge_, calls(4))
                  .starts_with("[batch] global batch = micro-batch x 4 accumulated x 2 ranks = 8 "
                               "micro-batches; k_steps 4 accumulates 4 calls"));
  auto local = merge_;
  local.localsgd = true;
  EXPECT_TRUE(says(printed_on_two_ranks(local, calls(4)),
                   "[batch] batch of each rank = micro-batch x 4 accumulated; with local SGD each "
                   "of 2 ranks updates with its own; k_steps 4 accumulates 4 calls"));
}

TEST_F(BatchLineTest, OfBackwardComesWithTheEpochsEndToo) {
  auto training = optimizer({});
  EXPECT_EQ(printed([&] {
              for (int i = 0; i < 3; ++i) training.backward(loss(batch_));
            }),
            "")
      << "nobody knows how many there will be";
  EXPECT_TRUE(
      says(printed([&] { training.end_epoch(); }),
           "[batch] global batch = micro-batch x 3 accumulated x 1 rank = 3 micro-batches; step() "
           "merges 3 calls of backward(loss)"));
}

// What the ranks see, from what they agree on.
TEST_F(BatchLineTest, CountsTheSamplesOfUnequalRanks) {
  const auto mean = [](DistributedOptimizer& training, torch::nn::Linear& net, const Batch& own) {
    const auto report = training.minimize(own, [&](const Batch& micro_batch) {
      return net->forward(micro_batch.data).square().mean();
    });
    EXPECT_EQ(report.samples, own.size());
    EXPECT_EQ(report.weight, report.sync_every > 1 ? own.size() : 25);
    return report;
  };
  // Whose weight is that of its tokens.
  const auto tokens = [](DistributedOptimizer& training, torch::nn::Linear& net, const Batch& own) {
    return training.minimize(own, [&](const Batch& micro_batch) {
      return WeightedLoss{.sum = net->forward(micro_batch.data).square().sum(),
                          .weight = 4.0 * static_cast<double>(micro_batch.size())};
    });
  };
  for (const auto& train : {Train(mean), Train(tokens)}) {
    EXPECT_TRUE(says(printed_on_two_ranks({}, train),
                     "[batch] global batch 25 on 2 ranks; on this one 1", " = 1 micro-batch of 1"));
    const auto local =
        printed_on_two_ranks({.localsgd = true, .localsgd_configs = {.k_steps = 4}}, train);
    EXPECT_TRUE(says(local, "[batch] batch 1", " of this rank = micro-batch 1",
                     "; with local SGD each of 2 ranks updates with its own"));
  }
}

TEST_F(BatchLineTest, OfBackwardAndStepHasWhatForwardWasTold) {
  const auto by_hand = [](bool tells, bool all) {
    return [=](DistributedOptimizer& training, torch::nn::Linear& net, const Batch& own) {
      for (const int64_t i : {0, 1}) {
        const auto part = own.slice(own.size() * i / 2, own.size() * (i + 1) / 2);
        torch::Tensor loss;
        {
          const auto scope = training.forward(tells && (all || i == 0) ? part.size() : 0);
          loss = net->forward(part.data).square().mean();
        }
        training.backward(loss);
      }
      return training.step();
    };
  };
  const std::string merges = "; step() merges 2 calls of backward(loss)";
  EXPECT_TRUE(says(printed_on_two_ranks({}, by_hand(true, true)),
                   "[batch] global batch 25 on 2 ranks; on this one 1", " = 2 micro-batches of 6",
                   merges));
  for (const bool tells : {false, true}) {
    const auto text = printed_on_two_ranks({}, by_hand(tells, false));
    EXPECT_TRUE(
        text.starts_with("[batch] global batch = micro-batch x 2 accumulated x 2 ranks = 4 "
                         "micro-batches" +
                         merges))
        << text;
    EXPECT_EQ(text.find("minimize(closure)"), text.npos) << text;
  }
}

}  // namespace
}  // namespace fleet
