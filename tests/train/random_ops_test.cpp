// SPDX-License-Identifier: Apache-2.0
// Dropout too is the same for one batch, k micro-batches, N ranks and recomputed layers.
#include "fleet/memory/checkpoint.h"
#include "fleet/ops/add_norm.h"
#include "fleet/ops/dropout.h"
#include "fleet/ops/tiled_attention.h"

#include "tests/train/small_training.h"

namespace fleet {
namespace {

using namespace testing;  // NOLINT
using torch::Tensor;

enum class Form { kBatch, kCalls, kEager };

struct RandomTraining {
  int ranks = 1;
  DistributedStrategy strategy = {};
  Form form = Form::kBatch;
  int64_t parts = 1;  // calls that make up a batch
  uint64_t seed = 7;
  double dropout = 0.5;
};

// Six numbers as tokens of an attention, behind a linear layer; every kind of random op.
Tensor random_loss(torch::nn::Sequential net, const Batch& batch, double p) {
  auto x = net[0]->as<torch::nn::Linear>()->forward(batch.data);  // N x 10
  x = ops::dropout(x, p);
  const auto tokens = x.view({x.size(0), 5, 1, 2});
  x = checkpoint(ops::tiled_attention(tokens, tokens, tokens, {.dropout = p}).flatten(1),
                 "context");
  x = ops::add_norm(torch::relu(x), x, {}, {}, {.dropout = p});
  return torch::nn::functional::cross_entropy(net[2]->as<torch::nn::Linear>()->forward(x),
                                              batch.target);
}

Tensors train_random(const RandomTraining& setup) {
  constexpr int64_t kSamples = 16, kSteps = 4;
  Tensors result;
  run_ranks(setup.ranks, [&](const Comm& comm) {
    auto net = small_net();
    comm->barrier("nets are made");  // ranks are threads here, with one generator
    if (comm->rank() == 0) torch::manual_seed(setup.seed);
    auto strategy = setup.strategy;
    if (setup.form == Form::kCalls) {
      strategy.gradient_merge = true;
      strategy.gradient_merge_configs = {.k_steps = static_cast<int>(setup.parts)};
    }
    DistributedOptimizer optimizer(small_optimizer("Momentum", net, 0.1), strategy, comm);
    for (int64_t step = 0; step < kSteps; ++step) {
      const auto batch = small_batch(kSamples, step);
      const int64_t share = kSamples / comm->size();
      const auto own = batch.slice(share * comm->rank(), share * (comm->rank() + 1));
      if (setup.form == Form::kBatch) {
        optimizer.minimize(own, [&](const Batch& b) { return random_loss(net, b, setup.dropout); });
        continue;
      }
      const int64_t size = share / setup.parts;
      for (int64_t i = 0; i < setup.parts; ++i) {
        const auto part = own.slice(i * size, (i + 1) * size);
        if (setup.form == Form::kCalls) {
          optimizer.minimize([&] { return Loss(random_loss(net, part, setup.dropout)); });
        } else {
          Tensor loss;
          {
            const auto scope = optimizer.forward();
            loss = random_loss(net, part, setup.dropout);
          }
          optimizer.backward(loss);
        }
      }
      if (setup.form == Form::kEager) optimizer.step();
    }
    if (comm->rank() == 0) {
      for (const auto& span : optimizer.arena().spans()) {
        result.push_back(span.value.detach().clone());
      }
    }
  });
  return result;
}

TEST(RandomOpsTest, DropoutIsTheSameForMicroBatches) {
  const auto whole = train_random({});
  for (const int k : {2, 4}) {
    RandomTraining setup;
    setup.strategy.gradient_merge = true;
    setup.strategy.gradient_merge_configs = {.k_steps = k};
    expect_close(train_random(setup), whole, 1e-4, 1e-6);
  }
  expect_close(train_random({.form = Form::kCalls, .parts = 4}), whole, 1e-4, 1e-6);
  expect_close(train_random({.form = Form::kEager, .parts = 4}), whole, 1e-4, 1e-6);
}

TEST(RandomOpsTest, DropoutIsTheSameForRanks) {
  const auto whole = train_random({});
  for (const int ranks : {2, 4}) {
    expect_close(train_random({.ranks = ranks}), whole, 1e-4, 1e-6);
  }
  RandomTraining merged{.ranks = 2};
  merged.strategy.gradient_merge = true;
  merged.strategy.gradient_merge_configs = {.k_steps = 2};
  expect_close(train_random(merged), whole, 1e-4, 1e-6);
}

TEST(RandomOpsTest, RecomputedIsPlainBitForBit) {
  RandomTraining setup;
  const auto plain = train_random(setup);
  setup.strategy.recompute = true;
  setup.strategy.recompute_configs.checkpoints = {"context"};
  expect_equal(train_random(setup), plain);
}

// What the tests above would not notice: masks that are always the same, or none at all.
TEST(RandomOpsTest, SeedsAndUpdatesHaveOtherMasks) {
  const auto one = train_random({.seed = 7}), other = train_random({.seed = 8});
  EXPECT_FALSE(torch::allclose(one[0], other[0], 1e-4, 1e-5));
  const auto without = train_random({.dropout = 0});
  EXPECT_FALSE(torch::allclose(one[0], without[0], 1e-4, 1e-5));
}

}  // namespace
}  // namespace fleet
