// SPDX-License-Identifier: Apache-2.0
// Loops that call backward(loss) as often as wanted, and step() when wanted.
#include <chrono>
#include <thread>

#include <gtest/gtest.h>
#include <torch/optim/sgd.h>

#include "fleet/memory/checkpoint.h"

#include "tests/support/error_of.h"
#include "tests/support/says.h"
#include "tests/train/small_training.h"

namespace fleet {
namespace {

using testing::Comm;
using testing::copies;
using testing::error_message_of;
using testing::expect_close;
using testing::expect_equal;
using testing::mean_loss;
using testing::run_ranks;
using testing::small_batch;
using testing::small_net;
using testing::small_optimizer;
using testing::Tensors;
using testing::weighted_loss;

constexpr int64_t kMicroBatches = 4;

Loss loss_of(torch::nn::Sequential net, const Batch& batch) {
  auto x = batch.data;
  for (size_t i = 0; i < net->size(); ++i) {
    x = (net->begin() + static_cast<std::ptrdiff_t>(i))->any_forward(x).get<torch::Tensor>();
    x = checkpoint(x, "layer" + std::to_string(i));
  }
  const auto losses = torch::nn::functional::cross_entropy(
      x, batch.target, torch::nn::functional::CrossEntropyFuncOptions().reduction(torch::kNone));
  const auto weights = batch.target.to(torch::kFloat) + 1;
  return WeightedLoss{.sum = (losses * weights).sum(), .weight = weights.sum().item<double>()};
}

struct Trained {
  Tensors values;
  std::vector<double> losses;
};

// Micro-batches of unequal size, by `minimize` or by hand.
Trained train(int ranks, DistributedStrategy strategy, bool by_hand, bool norm = true) {
  Trained result;
  run_ranks(ranks, [&](const Comm& comm) {
    auto net = small_net(norm);
    DistributedOptimizer optimizer(small_optimizer("Momentum", net, 0.1), strategy, comm);
    for (int64_t update = 0; update < 4; ++update) {
      UpdateReport report;
      for (int64_t i = 0; i < kMicroBatches; ++i) {
        const auto batch = small_batch(3 + i, 100 * update + 10 * i + comm->rank());
        if (!by_hand) {
          report = optimizer.minimize([&]() -> Loss { return loss_of(net, batch); });
          continue;
        }
        Loss loss;
        {
          const auto scope = optimizer.forward();
          loss = loss_of(net, batch);
        }
        EXPECT_FALSE(optimizer.backward(loss).updated);
      }
      if (by_hand) report = optimizer.step();
      EXPECT_TRUE(report.updated);
      EXPECT_EQ(report.update, update + 1);
      if (comm->rank() == 0) result.losses.push_back(report.loss);
    }
    optimizer.end_epoch();
    for (const auto& span : optimizer.arena().spans()) {
      EXPECT_TRUE(testing::same_everywhere(comm, span.value));
      if (comm->rank() == 0) result.values.push_back(span.value.detach().clone());
    }
  });
  return result;
}

DistributedStrategy merged(DistributedStrategy strategy = {}) {
  strategy.gradient_merge = true;
  strategy.gradient_merge_configs.k_steps = kMicroBatches;
  return strategy;
}

TEST(EagerTest, EqualsMinimizeWithTheSameMicroBatchesBitForBit) {
  const std::vector<std::pair<const char*, DistributedStrategy>> strategies = {
      {"plain", {}},
      {"amp", {.amp = true}},
      {"fp16", {.amp = true, .amp_configs = {.dtype = "fp16"}}},
      {"pure bf16", {.amp = true, .amp_configs = {.use_pure_bf16 = true}}},
      {"recompute",
       {.recompute = true, .recompute_configs = {.checkpoints = {"layer0", "layer2"}}}},
      {"budget", {.recompute = true, .recompute_configs = {.memory_budget = "1GiB"}}},
      {"local SGD", {.localsgd = true, .localsgd_configs = {.k_steps = 2}}},
      {"lars", {.lars = true}},
  };
  for (const auto& [name, strategy] : strategies) {
    for (const int ranks : {1, 2}) {
      SCOPED_TRACE(::testing::Message() << name << ", " << ranks << " ranks");
      const auto expected = train(ranks, merged(strategy), /*by_hand=*/false);
      const auto got = train(ranks, merged(strategy), /*by_hand=*/true);
      expect_equal(got.values, expected.values);
      EXPECT_EQ(got.losses, expected.losses);
    }
  }
}

TEST(EagerTest, NeedsNoGradientMergeInTheStrategy) {
  const auto expected = train(2, merged(), /*by_hand=*/false);
  expect_close(train(2, {}, /*by_hand=*/true).values, expected.values, 1e-5);
}

TEST(EagerTest, SynchronisedBatchNormSeesAllRanksInTheUsersForward) {
  DistributedStrategy strategy{.sync_batch_norm = true};
  expect_equal(train(2, merged(strategy), true).values, train(2, merged(strategy), false).values);
}

TEST(EagerTest, SendsOnlyWithTheLast) {
  run_ranks(2, [](const Comm& comm) {
    auto net = small_net();
    DistributedOptimizer optimizer(small_optimizer("SGD", net, 0.1), merged(), comm);
    const auto weight = net->parameters()[0];
    const auto gradient_of = [&](int64_t step) {
      auto other = small_net();
      mean_loss(other, small_batch(4, step + comm->rank())).backward();
      return other->parameters()[0].grad().clone();
    };
    const auto first = gradient_of(0);
    optimizer.backward(mean_loss(net, small_batch(4, comm->rank())));
    // This rank's own, up to the factor by which all losses are divided.
    const auto factor = weight.grad().norm() / first.norm();
    EXPECT_TRUE(torch::allclose(weight.grad(), first * factor, 1e-4, 1e-6));
    optimizer.backward(mean_loss(net, small_batch(4, 20 + comm->rank())));
    EXPECT_TRUE(optimizer.step().updated);  // fewer than k_steps
    EXPECT_TRUE(testing::same_everywhere(comm, weight.grad()));
  });
}

TEST(EagerTest, ARankWithoutMicroBatchesTakesPart) {
  auto alone = small_net();
  DistributedOptimizer plain(small_optimizer("SGD", alone, 0.1), {},
                             std::make_shared<comm::Communicator>());
  plain.backward(weighted_loss(alone, small_batch(5, 1)));
  plain.step();
  run_ranks(2, [&](const Comm& comm) {
    auto net = small_net();
    DistributedOptimizer optimizer(small_optimizer("SGD", net, 0.1), {}, comm);
    if (comm->rank() == 1) optimizer.backward(weighted_loss(net, small_batch(5, 1)));
    EXPECT_TRUE(optimizer.step().updated);
    expect_close(copies(net->parameters()), copies(alone->parameters()), 1e-5);
  });
}

// After zero_grad() a window starts afresh, whoever calls it and however it clears.
TEST(EagerTest, ZeroGradOfTorchDropsTheWindow) {
  for (const bool is_bf16 : {false, true}) {
    DistributedStrategy strategy;
    if (is_bf16) strategy = {.amp = true, .amp_configs = {.use_pure_bf16 = true}};
    const auto trained =
        [&](const std::function<void(DistributedOptimizer&, torch::nn::Sequential&)>& clear) {
          auto net = small_net();
          DistributedOptimizer optimizer(small_optimizer("Momentum", net, 0.1), strategy,
                                         std::make_shared<comm::Communicator>());
          const auto backward = [&](int64_t step) {
            const auto scope = optimizer.forward();
            optimizer.backward(mean_loss(net, small_batch(5, step)));
          };
          for (int64_t update = 0; update < 3; ++update) {
            if (clear) {
              backward(50);
              backward(60);
              clear(optimizer, net);
            }
            backward(update);
            backward(update + 7);
            optimizer.step();
            net->zero_grad();  // as in the guide; harmless here
          }
          Tensors values;
          for (const auto& span : optimizer.arena().spans()) values.push_back(span.value.clone());
          return values;
        };
    const auto expected = trained(nullptr);
    expect_equal(trained([](auto& optimizer, auto&) { optimizer.zero_grad(); }), expected);
    expect_equal(trained([](auto&, auto& net) { net->zero_grad(); }), expected);
    expect_equal(trained([](auto&, auto& net) { net->zero_grad(/*set_to_none=*/false); }),
                 expected);
    expect_equal(trained([](auto&, auto& net) {
                   torch::optim::SGD(net->parameters(), 0.1).zero_grad(false);
                 }),
                 expected);
  }
}

// Where torch's own loops have it: between forward and backward.
TEST(EagerTest, ZeroGradKeepsTheForwardThatIsToBeDrivenBackward) {
  const std::vector<DistributedStrategy> strategies = {
      {},
      {.amp = true, .amp_configs = {.dtype = "fp16"}},
      {.recompute = true, .recompute_configs = {.checkpoints = {"layer0", "layer2"}}}};
  for (const auto& strategy : strategies) {
    using Clear = std::function<void(DistributedOptimizer&, torch::nn::Sequential&)>;
    const auto trained = [&](const Clear& clear, bool gathers) {
      auto net = small_net(/*norm=*/false);
      DistributedOptimizer optimizer(small_optimizer("Momentum", net, 0.1), strategy,
                                     std::make_shared<comm::Communicator>());
      const auto forward = [&](int64_t step) {
        const auto scope = optimizer.forward();
        return loss_of(net, small_batch(5, step));
      };
      for (int64_t update = 0; update < 3; ++update) {
        if (gathers) optimizer.backward(forward(50));
        const auto loss = forward(update);
        if (clear) clear(optimizer, net);
        optimizer.backward(loss);
        EXPECT_TRUE(optimizer.step().updated);
      }
      return copies(net->parameters());
    };
    const auto expected = trained(nullptr, /*gathers=*/false);
    for (const bool gathers : {false, true}) {
      expect_equal(trained([](auto& optimizer, auto&) { optimizer.zero_grad(); }, gathers),
                   expected);
      expect_equal(trained([](auto&, auto& net) { net->zero_grad(); }, gathers), expected);
    }
  }
}

TEST(EagerTest, ZeroGradInsideAClosureClearsNothing) {
  const auto trained = [](bool clears) {
    auto net = small_net();
    DistributedOptimizer optimizer(small_optimizer("Momentum", net, 0.1), merged(),
                                   std::make_shared<comm::Communicator>());
    for (int64_t i = 0; i < 2; ++i) {
      optimizer.minimize(small_batch(9, i), [&](const Batch& micro_batch) {
        if (clears) net->zero_grad();
        return mean_loss(net, micro_batch);
      });
    }
    return copies(net->parameters());
  };
  expect_equal(trained(true), trained(false));
}

// A forward whose loss no backward gets leaves nothing behind for the updates after it.
TEST(EagerTest, AForwardWithoutABackwardIsForgotten) {
  const auto trained = [](bool abandons) {
    auto net = small_net();
    DistributedOptimizer optimizer(small_optimizer("Momentum", net, 0.1), {},
                                   std::make_shared<comm::Communicator>());
    if (abandons) {
      const auto scope = optimizer.forward();
      mean_loss(net, small_batch(5, 9));
    }
    optimizer.minimize([&] { return mean_loss(net, small_batch(5, 0)); });
    optimizer.backward(mean_loss(net, small_batch(5, 1)));
    EXPECT_TRUE(optimizer.step().updated);
    return copies(net->parameters());
  };
  expect_equal(trained(true), trained(false));
}

TEST(EagerTest, MistakesAreNamed) {
  auto net = small_net();
  const auto batch = small_batch(4, 0);
  {
    DistributedOptimizer optimizer(small_optimizer("SGD", net, 0.1), {},
                                   std::make_shared<comm::Communicator>());
    mean_loss(net, batch).backward();
    EXPECT_TRUE(says(error_message_of([&] { optimizer.step(); }),
                     "no backward(loss) since the last update",
                     "optimizer.backward(loss), not loss.backward()"));
    optimizer.backward(mean_loss(net, batch), {.is_last = true});
    EXPECT_TRUE(says(error_message_of([&] { optimizer.backward(mean_loss(net, batch)); }),
                     "its gradients may have been sent"));
    EXPECT_TRUE(optimizer.step().updated);
  }
  DistributedOptimizer amp(small_optimizer("SGD", net, 0.1), {.amp = true},
                           std::make_shared<comm::Communicator>());
  EXPECT_TRUE(says(error_message_of([&] { amp.backward(mean_loss(net, batch)); }),
                   "the strategy has amp, and the forward of this loss was outside",
                   "const auto scope = optimizer.forward()"));
  DistributedOptimizer recompute(
      small_optimizer("SGD", net, 0.1),
      {.recompute = true, .recompute_configs = {.checkpoints = {"nowhere"}}},
      std::make_shared<comm::Communicator>());
  const auto text = error_message_of([&] {
    Loss loss;
    {
      const auto scope = recompute.forward();
      loss = loss_of(net, batch);
    }
    recompute.backward(loss);
  });
  EXPECT_TRUE(says(text, "the forward never names these checkpoints", "nowhere"));
}

// A step line has the time of one micro-batch and the update, as with `minimize(closure)`.
TEST(EagerTest, TimesCountTheUsersForwardOnce) {
  constexpr double kForward_s = 0.03;
  auto net = small_net();
  auto optimizer = distributed_optimizer(small_optimizer("SGD", net, 0.1));
  const auto begin = std::chrono::steady_clock::now();
  for (int update = 0; update < 2; ++update) {
    for (int i = 0; i < 3; ++i) {
      torch::Tensor loss;
      {
        const auto scope = optimizer.forward();
        std::this_thread::sleep_for(std::chrono::duration<double>(kForward_s));
        loss = net->forward(small_batch(4, i).data).mean();
      }
      EXPECT_GE(optimizer.backward(loss).seconds, kForward_s);
    }
    const auto report = optimizer.step();
    EXPECT_GE(report.seconds, kForward_s);
    EXPECT_GE(report.total_seconds, 3 * (update + 1) * kForward_s);
    const auto elapsed = std::chrono::steady_clock::now() - begin;
    EXPECT_LE(report.total_seconds, std::chrono::duration<double>(elapsed).count());
  }
}

}  // namespace
}  // namespace fleet
