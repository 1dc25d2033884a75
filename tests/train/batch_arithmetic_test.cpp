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

TEST(BatchArithmeticTest, SaysHowAGlobalBatchComesAbout) {
  EXPECT_EQ((BatchArithmetic{.samples = 64, .global_samples = 64}.text()),
            "global batch 64 = micro-batch 64 x 1 accumulated x 1 rank");
  EXPECT_TRUE(says(
      BatchArithmetic{
          .samples = 4096, .global_samples = 8192, .micro_batches = 16, .k_steps = 16, .ranks = 2}
          .text(),
      "global batch 8192 = micro-batch 256 x 16 accumulated x 2 ranks; k_steps 16 "
      "splits the batch of 4096 on each rank (in the guide N becomes 16 N: "));
}

TEST(BatchArithmeticTest, UnequalSharesAreNotSaidToBeAProduct) {
  EXPECT_EQ(
      (BatchArithmetic{.samples = 13, .global_samples = 25, .micro_batches = 2, .ranks = 2}.text()),
      "global batch 25 on 2 ranks; on this one 13 = 2 micro-batches of 6 or 7");
}

TEST(BatchArithmeticTest, CallsAccumulateAsInTheGuide) {
  EXPECT_EQ(
      (BatchArithmetic{.form = BatchForm::kCalls, .micro_batches = 4, .k_steps = 4, .ranks = 2}
           .text()),
      "global batch = micro-batch x 4 accumulated x 2 ranks; k_steps 4 accumulates 4 calls of "
      "minimize(closure): a micro-batch of N samples makes a batch of 4 N on each rank, as in the "
      "guide");
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

  torch::nn::Linear net_{4, 2};
  const Batch batch_{torch::ones({24, 4}), torch::ones({24})};
  const DistributedStrategy merge_{.gradient_merge = true,
                                   .gradient_merge_configs = {.k_steps = 4}};
};

TEST_F(BatchLineTest, ComesOnceWithTheFirstUpdateOfASplitBatch) {
  const auto text = printed([&] {
    auto training = optimizer(merge_);
    for (int i = 0; i < 3; ++i) {
      training.minimize(batch_, [&](const Batch& part) { return loss(part); });
    }
  });
  EXPECT_TRUE(text.starts_with("[batch] global batch 24 = micro-batch 6 x 4 accumulated x 1 rank;"))
      << text;
  EXPECT_EQ(std::ranges::count(text, '\n'), 1) << text;
}

TEST_F(BatchLineTest, ComesOnceWithTheFirstUpdateOfCalls) {
  auto training = optimizer(merge_);
  const auto call = [&] { training.minimize([&] { return loss(batch_); }); };
  EXPECT_EQ(printed([&] {
              for (int i = 0; i < 3; ++i) call();
            }),
            "")
      << "no update yet";
  EXPECT_TRUE(printed(call).starts_with("[batch] global batch = micro-batch x 4 accumulated x 1 "));
  EXPECT_EQ(printed([&] {
              for (int i = 0; i < 8; ++i) call();
            }),
            "");
}

// What the ranks see, from what they agree on.
TEST_F(BatchLineTest, CountsTheSamplesOfUnequalRanks) {
  std::vector<UpdateReport> reports(2);
  const auto text = printed([&] {
    testing::run_ranks(2, [&](const testing::Comm& comm) {
      torch::nn::Linear net(4, 2);
      DistributedOptimizer training(std::make_unique<optim::SGD>(net, optim::SgdOptions{.lr = 0.1}),
                                    {}, comm);
      const auto own = comm->rank() == 0 ? batch_.slice(0, 13) : batch_.slice(13, 24);
      reports[static_cast<size_t>(comm->rank())] = training.minimize(
          own, [&](const Batch& part) { return net->forward(part.data).square().mean(); });
    });
  });
  EXPECT_TRUE(says(text, "[batch] global batch 24 on 2 ranks; on this one 1"));
  EXPECT_EQ(reports[0].samples, 13);
  EXPECT_EQ(reports[1].samples, 11);
  EXPECT_EQ(reports[0].weight, 24);
}

}  // namespace
}  // namespace fleet
