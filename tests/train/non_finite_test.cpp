// SPDX-License-Identifier: Apache-2.0
// A loss or a gradient that is not finite never passes silently, and never reaches the weights.
#include <cmath>

#include <gtest/gtest.h>

#include "tests/support/error_of.h"
#include "tests/support/says.h"
#include "tests/train/small_training.h"

namespace fleet {
namespace {

using testing::Comm;
using testing::copies;
using testing::error_message_of;
using testing::expect_equal;
using testing::mean_loss;
using testing::run_ranks;
using testing::small_batch;
using testing::small_net;
using testing::small_optimizer;

// Finite, with a gradient that is not: the root of 0.
torch::Tensor bad_gradient(torch::nn::Sequential net, const Batch& batch) {
  const auto weight = net->parameters()[0];
  return mean_loss(net, batch) + ((weight - weight).sum()).sqrt();
}

TEST(NonFiniteTest, AGradientIsRefusedByNameUnderEveryOptimizer) {
  for (const auto* name : {"SGD", "Momentum", "Adam", "AdamW"}) {
    for (const int wise : {0, 1}) {
      DistributedStrategy strategy;
      if (wise && std::string(name) == "SGD") continue;
      if (wise) (std::string(name).starts_with("Adam") ? strategy.lamb : strategy.lars) = true;
      auto net = small_net();
      auto optimizer = distributed_optimizer(small_optimizer(name, net, 0.1), strategy);
      optimizer.minimize([&] { return mean_loss(net, small_batch(6, 0)); });
      const auto before = copies(net->parameters());
      const auto text = error_message_of(
          [&] { optimizer.minimize([&] { return bad_gradient(net, small_batch(6, 1)); }); });
      EXPECT_TRUE(says(text, "the gradient of '0.weight' is not finite, though the loss is",
                       "nothing was updated"));
      expect_equal(copies(net->parameters()), before);
      EXPECT_TRUE(optimizer.minimize([&] { return mean_loss(net, small_batch(6, 2)); }).updated);
    }
  }
}

TEST(NonFiniteTest, AnOverflowOnTheWireIsRefused) {
  run_ranks(2, [](const Comm& comm) {
    auto net = small_net();
    DistributedOptimizer optimizer(small_optimizer("SGD", net, 0.1), {.fp16_allreduce = true},
                                   comm);
    const auto before = copies(net->parameters());
    const auto text = error_message_of(
        [&] { optimizer.minimize([&] { return mean_loss(net, small_batch(6, 0)) * 1e7; }); });
    EXPECT_TRUE(says(text, "is not finite", "switch fp16_allreduce off"));
    expect_equal(copies(net->parameters()), before);
  });
}

TEST(NonFiniteTest, ALocalRankRefusesItsOwn) {
  run_ranks(2, [](const Comm& comm) {
    auto net = small_net();
    DistributedOptimizer optimizer(small_optimizer("SGD", net, 0.1),
                                   {.localsgd = true, .localsgd_configs = {.k_steps = 4}}, comm);
    const auto before = copies(net->parameters());
    const auto text = error_message_of([&] {
      optimizer.minimize([&] {
        return comm->rank() == 1 ? bad_gradient(net, small_batch(6, 0))
                                 : mean_loss(net, small_batch(6, 0));
      });
    });
    if (comm->rank() == 1) {
      EXPECT_TRUE(says(text, "is not finite"));
      expect_equal(copies(net->parameters()), before);
    } else {
      EXPECT_EQ(text, "");
    }
    optimizer.end_epoch();
  });
}

std::vector<std::string> lines_with(const std::string& text, const std::string& part) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) {
    if (line.find(part) != std::string::npos) lines.push_back(line);
  }
  return lines;
}

TEST(NonFiniteTest, AmpSaysTheFirstSkippedUpdateAndEveryPowerOfTwo) {
  for (const auto* dtype : {"bf16", "fp16"}) {
    auto net = small_net();
    auto optimizer = distributed_optimizer(small_optimizer("SGD", net, 0.1),
                                           {.amp = true, .amp_configs = {.dtype = dtype}});
    const auto before = copies(net->parameters());
    ::testing::internal::CaptureStderr();
    ::testing::internal::CaptureStdout();
    for (int i = 0; i < 11; ++i) {
      const auto report = optimizer.minimize([&] { return bad_gradient(net, small_batch(6, i)); });
      EXPECT_TRUE(report.skipped);
    }
    const auto text =
        ::testing::internal::GetCapturedStdout() + ::testing::internal::GetCapturedStderr();
    const auto lines = lines_with(text, "is skipped");
    ASSERT_EQ(lines.size(), 4u) << text;  // 1, 2, 4, 8
    EXPECT_TRUE(says(lines[0], "update 1 is skipped", "the gradient of '0.weight' is not finite",
                     "1 skipped so far"));
    EXPECT_TRUE(says(lines[3], "8 skipped so far"));
    expect_equal(copies(net->parameters()), before);
  }
}

TEST(NonFiniteTest, AmpDoesNotTakeABadLossForAnOverflowOfTheScale) {
  for (const int ranks : {1, 2}) {
    run_ranks(ranks, [&](const Comm& comm) {
      auto net = small_net();
      DistributedOptimizer optimizer(small_optimizer("SGD", net, 0.1),
                                     {.amp = true, .amp_configs = {.dtype = "fp16"}}, comm);
      const auto before = copies(net->parameters());
      for (int i = 0; i < 6; ++i) {
        const auto report = optimizer.minimize([&] {
          const auto loss = mean_loss(net, small_batch(6, i));
          return comm->rank() == 0 ? loss * NAN : loss;
        });
        EXPECT_TRUE(report.skipped);  // on all ranks
        EXPECT_EQ(report.loss_scale, 32768);
      }
      expect_equal(copies(net->parameters()), before);
      EXPECT_EQ(optimizer.skipped_updates(), 6);
    });
  }
}

// A loss that is not finite, with gradients that are.
TEST(NonFiniteTest, AmpSkipsWhereOnlyTheLossIsBad) {
  auto net = small_net();
  auto optimizer = distributed_optimizer(small_optimizer("SGD", net, 0.1), {.amp = true});
  const auto before = copies(net->parameters());
  ::testing::internal::CaptureStderr();
  ::testing::internal::CaptureStdout();
  const auto report = optimizer.minimize([&] { return mean_loss(net, small_batch(6, 0)) + NAN; });
  const auto text =
      ::testing::internal::GetCapturedStdout() + ::testing::internal::GetCapturedStderr();
  EXPECT_TRUE(report.skipped);
  EXPECT_TRUE(says(text, "the loss is nan in forward already, which no loss scale causes"));
  expect_equal(copies(net->parameters()), before);
}

// A weight of 0 hides no loss that is not finite, though its gradients may be.
TEST(NonFiniteTest, ALossOfWeightZeroIsLookedAtToo) {
  for (const bool is_term : {false, true}) {
    for (const bool amp : {false, true}) {
      SCOPED_TRACE(::testing::Message() << is_term << amp);
      auto net = small_net();
      auto optimizer = distributed_optimizer(
          small_optimizer("SGD", net, 0.1),
          {.amp = amp, .gradient_merge = true, .gradient_merge_configs = {.k_steps = 2}});
      const auto before = copies(net->parameters());
      const auto train = [&](double add, double weight) {
        return optimizer.minimize([&]() -> Loss {
          const auto loss = mean_loss(net, small_batch(6, 0));
          if (!is_term) return WeightedLoss{.sum = loss + add, .weight = weight};
          return LossTerms{.terms = {{loss, 1}, {loss + add, weight}}};
        });
      };
      if (amp) {
        train(NAN, 0);
        EXPECT_TRUE(train(0, is_term ? 0 : 1).skipped);
      } else {
        EXPECT_TRUE(says(error_message_of([&] { train(NAN, 0); }), "the loss is nan at update 1"));
      }
      expect_equal(copies(net->parameters()), before);
      train(0, 1);
      EXPECT_TRUE(train(0, 1).updated);
    }
  }
}

}  // namespace
}  // namespace fleet
