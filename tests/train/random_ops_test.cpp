// SPDX-License-Identifier: Apache-2.0
// Dropout too is the same for one batch, k micro-batches, N ranks and recomputed layers.
#include <set>

#include "fleet/memory/checkpoint.h"
#include "fleet/ops/add_norm.h"
#include "fleet/ops/dropout.h"
#include "fleet/ops/tiled_attention.h"
#include "fleet/train/update/sample_offsets.h"

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
  int64_t micro_batches = 1;  // calls that make up a batch
  uint64_t seed = 7;
  double dropout = 0.5;
  int64_t first_share = 0;  // of the first of two ranks; 0: equal shares
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
      strategy.gradient_merge_configs = {.k_steps = static_cast<int>(setup.micro_batches)};
    }
    DistributedOptimizer optimizer(small_optimizer("Momentum", net, 0.1), strategy, comm);
    for (int64_t step = 0; step < kSteps; ++step) {
      const auto batch = small_batch(kSamples, step);
      const int64_t share = kSamples / comm->size();
      const auto cut = [&](int64_t rank) {
        return setup.first_share > 0 && rank == 1 ? setup.first_share : share * rank;
      };
      const auto own = batch.slice(cut(comm->rank()), cut(comm->rank() + 1));
      if (setup.form == Form::kBatch) {
        optimizer.minimize(own, [&](const Batch& b) { return random_loss(net, b, setup.dropout); });
        continue;
      }
      const int64_t size = share / setup.micro_batches;
      for (int64_t i = 0; i < setup.micro_batches; ++i) {
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
  expect_close(train_random({.form = Form::kCalls, .micro_batches = 4}), whole, 1e-4, 1e-6);
  expect_close(train_random({.form = Form::kEager, .micro_batches = 4}), whole, 1e-4, 1e-6);
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

TEST(RandomOpsTest, DropoutIsTheSameForUnequalRanks) {
  const auto whole = train_random({});
  for (const int64_t first_share : {1, 7, 13}) {
    RandomTraining setup{.ranks = 2, .first_share = first_share};
    expect_close(train_random(setup), whole, 1e-4, 1e-6);
    setup.strategy.gradient_merge = true;
    setup.strategy.gradient_merge_configs = {.micro_batch_size = 4};
    expect_close(train_random(setup), whole, 1e-4, 1e-6);
  }
}

// The numbers that samples of three ranks have, update by update; ranks agree on them as an update
// makes them do.
TEST(RandomOpsTest, NoTwoSamplesHaveOneNumber) {
  const std::vector<std::vector<int64_t>> updates = {
      {8, 8, 8},   {8, 8, 8},  {3, 2, 2},  {8, 8, 8}, {8, 8, 8}, {13, 12, 12}, {13, 12, 12},
      {13, 12, 9}, {0, 20, 9}, {0, 20, 9}, {5, 5, 5}, {6, 5, 4}, {6, 5, 4},    {6, 5, 7}};
  // All but those that come as a surprise after two updates of equal sizes.
  const std::vector<bool> is_one_batch = {true, true, false, true,  true, false, true,
                                          true, true, true,  false, true, true,  false};
  for (const bool resumes : {false, true}) {
    std::vector<std::set<std::pair<int64_t, int64_t>>> seen(updates.size());
    std::mutex mutex;
    run_ranks(3, [&](const Comm& comm) {
      auto places = std::make_unique<SampleOffsets>(comm);
      for (size_t u = 0; u < updates.size(); ++u) {
        if (resumes) {
          const auto state = places->state();
          places = std::make_unique<SampleOffsets>(comm);
          places->set_state(state);
        }
        const auto samples = updates[u][static_cast<size_t>(comm->rank())];
        places->open(samples, /*is_local=*/false);
        const auto half = samples / 2;
        for (const auto& [begin, end] : {std::pair{int64_t{0}, half}, std::pair{half, samples}}) {
          const auto position = places->position(
              {.begin = begin, .end = end, .batch_samples = samples}, /*window_samples=*/0);
          const std::lock_guard lock(mutex);
          for (int64_t i = 0; i < end - begin; ++i) {
            EXPECT_TRUE(seen[u].emplace(position.stream, position.first_sample + i).second)
                << "update " << u << ", rank " << comm->rank() << ", sample " << begin + i;
          }
        }
        const auto resized = torch::tensor({places->is_resized() ? 1 : 0}, torch::kLong);
        comm->all_reduce(resized, comm::ReduceOp::kSum, "test");
        places->close(resized.item<int64_t>() > 0);
      }
    });
    for (size_t u = 0; u < updates.size(); ++u) {
      std::set<std::pair<int64_t, int64_t>> whole;
      for (int64_t i = 0; i < static_cast<int64_t>(seen[u].size()); ++i) whole.emplace(0, i);
      EXPECT_EQ(seen[u] == whole, is_one_batch[u]) << u;
    }
  }
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
