// SPDX-License-Identifier: Apache-2.0
#include "fleet/data/sharded_sampler.h"

#include <algorithm>

#include <gtest/gtest.h>

#include "fleet/core/error.h"
#include "fleet/data/global_batch.h"

#include "tests/support/error_of.h"
#include "tests/support/says.h"

namespace fleet {
namespace {

using testing::error_message_of;
using Indices = std::vector<int64_t>;

// What all ranks together take in each update of an epoch, in the order of ranks.
std::vector<Indices> global_batches(int64_t size, SamplerOptions options, int64_t epoch = 0) {
  std::vector<Indices> batches;
  const int64_t ranks = options.world_size.value_or(1);
  for (int64_t rank = 0; rank < ranks; ++rank) {
    options.rank = rank;
    options.world_size = ranks;
    ShardedSampler sampler(size, options);
    sampler.seek(epoch);
    batches.resize(sampler.updates_per_epoch());
    for (auto& batch : batches) {
      const auto part = sampler.next();
      batch.insert(batch.end(), part.begin(), part.end());
    }
    EXPECT_EQ(sampler.state().epoch, epoch + 1);
  }
  return batches;
}

Indices joined(const std::vector<Indices>& batches) {
  Indices all;
  for (const auto& batch : batches) all.insert(all.end(), batch.begin(), batch.end());
  return all;
}

TEST(ShardedSamplerTest, TakesEverySampleOncePerEpoch) {
  for (const int64_t ranks : {1, 2, 3, 4, 7}) {
    for (const int64_t size : {7, 8, 61, 100, 101}) {
      for (const int64_t batch_size : {1, 3, 64}) {
        auto all = joined(global_batches(
            size, {.batch_size = batch_size, .seed = 3, .world_size = ranks}, /*epoch=*/2));
        std::sort(all.begin(), all.end());
        ASSERT_EQ(std::ssize(all), size) << ranks << " ranks, batch " << batch_size;
        for (int64_t i = 0; i < size; ++i) ASSERT_EQ(all[i], i);
      }
    }
  }
}

TEST(ShardedSamplerTest, RanksSplitTheBatchOfOneLargerRank) {
  for (const int64_t ranks : {2, 3, 4}) {
    const auto one = global_batches(101, {.batch_size = 12, .seed = 9});
    const auto many =
        global_batches(101, {.batch_size = 12 / ranks, .seed = 9, .world_size = ranks});
    EXPECT_EQ(one, many);
  }
}

TEST(ShardedSamplerTest, SplitsTheLastShortBatchEvenly) {
  // 7 ranks x 4 = 28 per update; 61 samples leave 5 for the last: two ranks get nothing.
  std::vector<size_t> sizes;
  for (int64_t rank = 0; rank < 7; ++rank) {
    ShardedSampler sampler(61, {.batch_size = 4, .rank = rank, .world_size = 7});
    EXPECT_EQ(sampler.updates_per_epoch(), 3);
    EXPECT_EQ(sampler.next().size(), 4u);
    EXPECT_EQ(sampler.next().size(), 4u);
    sizes.push_back(sampler.next().size());
  }
  EXPECT_EQ(std::count(sizes.begin(), sizes.end(), 1u), 5);
  EXPECT_EQ(std::count(sizes.begin(), sizes.end(), 0u), 2);
}

TEST(ShardedSamplerTest, DropsTheLastShortBatchOnRequest) {
  const auto batches = global_batches(61, {.batch_size = 4, .drop_last = true, .world_size = 7});
  ASSERT_EQ(batches.size(), 2u);
  for (const auto& batch : batches) EXPECT_EQ(batch.size(), 28u);
  EXPECT_EQ(global_batches(56, {.batch_size = 4, .drop_last = true, .world_size = 7}).size(), 2u);
}

// Snapshots rely on this order for ever: these numbers must never change.
// tests/data/sampler_order.py computes them independently.
TEST(ShardedSamplerTest, KeepsItsOrderForEver) {
  EXPECT_EQ(global_batches(10, {.batch_size = 10, .seed = 0})[0],
            (Indices{6, 3, 2, 9, 8, 1, 4, 7, 0, 5}));
  EXPECT_EQ(global_batches(10, {.batch_size = 10, .seed = 0}, /*epoch=*/1)[0],
            (Indices{1, 4, 3, 5, 6, 2, 9, 7, 8, 0}));
  EXPECT_EQ(global_batches(60000, {.batch_size = 8, .seed = 42})[0],
            (Indices{9008, 53004, 27240, 43053, 44717, 24136, 18511, 31801}));
}

TEST(ShardedSamplerTest, OrderFollowsSeedAndEpoch) {
  const auto order = [](int64_t seed, int64_t epoch) {
    return joined(global_batches(100, {.batch_size = 10, .seed = seed}, epoch));
  };
  EXPECT_EQ(order(1, 0), order(1, 0));
  EXPECT_NE(order(1, 0), order(2, 0));
  EXPECT_NE(order(1, 0), order(1, 1));
  EXPECT_NE(order(0, 1), order(1, 0));
}

TEST(ShardedSamplerTest, KeepsFileOrderWithoutShuffle) {
  EXPECT_EQ(joined(global_batches(5, {.batch_size = 2, .shuffle = false}, /*epoch=*/4)),
            (Indices{0, 1, 2, 3, 4}));
}

// All 24 orders of 4 samples must come equally often: 24 +- 5 deviations of each.
TEST(ShardedSamplerTest, IsUniform) {
  std::map<Indices, int> counts;
  ShardedSampler sampler(4, {.batch_size = 4, .seed = 11});
  for (int epoch = 0; epoch < 24000; ++epoch) ++counts[sampler.next()];
  ASSERT_EQ(counts.size(), 24u);
  for (const auto& [order, count] : counts) EXPECT_NEAR(count, 1000, 5 * 31);
}

TEST(ShardedSamplerTest, ResumesAsIfNeverStopped) {
  const SamplerOptions options = {.batch_size = 3, .seed = 5, .rank = 1, .world_size = 2};
  ShardedSampler straight(20, options);  // 4 updates per epoch
  for (int stop = 0; stop < 9; ++stop) {
    ShardedSampler resumed(20, options);
    resumed.restore(straight.state());
    ShardedSampler copy = straight;
    for (int update = 0; update < 6; ++update) EXPECT_EQ(resumed.next(), copy.next());
    EXPECT_EQ(resumed.state(), copy.state());
    straight.next();
  }
  EXPECT_EQ(straight.state().epoch, 2);
  EXPECT_EQ(straight.state().next_update, 1);
}

TEST(ShardedSamplerTest, ResumesWithOtherRanksAtTheSameGlobalBatch) {
  ShardedSampler two(20, {.batch_size = 2, .seed = 5, .rank = 0, .world_size = 2});
  two.next();
  ShardedSampler one(20, {.batch_size = 4, .seed = 5});
  one.restore(two.state());
  const auto whole = one.next();
  EXPECT_EQ(Indices(whole.begin(), whole.begin() + 2), two.next());
}

TEST(ShardedSamplerTest, OtherNumbersOfRanksAreOfferedWhereNoBatchSizeDoes) {
  EXPECT_EQ(global_batch_advice(128, 4),
            "use --batch_size 32: 32 x 4 ranks keep the global batch of 128");
  EXPECT_EQ(global_batch_advice(128, 3),
            "3 ranks cannot split the global batch of 128: start 2 ranks with --batch_size 64, or "
            "4 ranks with --batch_size 32");
  EXPECT_EQ(global_batch_advice(2, 3),
            "3 ranks cannot split the global batch of 2: start 2 ranks with --batch_size 1");
  EXPECT_EQ(global_batch_advice(0, 3), "take another snapshot; this one is damaged");
}

TEST(ShardedSamplerTest, RefusesAPositionOfAnotherRun) {
  ShardedSampler sampler(20, {.batch_size = 2, .seed = 5, .rank = 0, .world_size = 2});
  const auto refusal = [&](SamplerState state) {
    return error_message_of([&] { sampler.restore(state); });
  };
  auto state = sampler.state();
  state.seed = 6;
  state.dataset_size = 21;
  EXPECT_TRUE(
      says(refusal(state), "seed was 6 and is now 5", "data set size was 21 and is now 20"));
  ShardedSampler three_ranks(20, {.batch_size = 2, .seed = 5, .rank = 0, .world_size = 3});
  EXPECT_TRUE(says(refusal(three_ranks.state()),
                   "global batch (batch_size x ranks) was 6 and is now 4",
                   "fix: use --batch_size 3: 3 x 2 ranks keep the global batch of 6"));
  state = sampler.state();
  state.fingerprint = 1;
  EXPECT_TRUE(says(refusal(state), "the samples are others"));
  state = sampler.state();
  state.next_update = 6;
  EXPECT_TRUE(says(refusal(state), "update 6 of epoch 0 does not exist"));
  EXPECT_EQ(sampler.state().next_update, 0) << "a refused position must not move the sampler";
}

TEST(ShardedSamplerTest, RefusesWhatCannotBeSharded) {
  const auto refusal = [](int64_t size, SamplerOptions options) {
    return error_message_of([&] { ShardedSampler(size, options); });
  };
  EXPECT_TRUE(
      says(refusal(3, {.rank = 0, .world_size = 4}), "4 ranks are more than the 3 samples"));
  EXPECT_TRUE(says(refusal(0, {.batch_size = 0, .rank = 0, .world_size = 0}), "has 0 samples",
                   "batch_size is 0", "world_size is 0"));
  EXPECT_TRUE(says(refusal(9, {.rank = 2, .world_size = 2}), "rank 2 is outside 0..1"));
  EXPECT_TRUE(says(refusal(9, {.batch_size = 5, .drop_last = true, .rank = 0, .world_size = 2}),
                   "one global batch is 5 x 2 ranks, and there are 9 samples"));
  EXPECT_TRUE(says(refusal(9, {.batch_size = INT64_MAX, .rank = 0, .world_size = 2}), "overflows"));
}

// `world_size` alone once meant rank 0: a program that forgot the other option trained on the
// samples of rank 0 everywhere.
TEST(ShardedSamplerTest, RankAndWorldSizeComeTogether) {
  const auto refusal = [](SamplerOptions options) {
    return error_message_of([&] { ShardedSampler(9, options); });
  };
  EXPECT_TRUE(says(refusal({.world_size = 2}), "world_size is 2, and rank is not given",
                   "fix: give both, or neither: then they are those of fleet::init"));
  EXPECT_TRUE(says(refusal({.rank = 1}), "rank is 1, and world_size is not given"));
  EXPECT_EQ(ShardedSampler(9, {.batch_size = 9, .world_size = 1}).next().size(), 9u);
  EXPECT_EQ(ShardedSampler(9, {.batch_size = 9}).next().size(), 9u) << "one process: all samples";
}

TEST(SamplerStateTest, RefusesAPositionBeyondAllSamplesForOtherRanks) {
  SamplerState state{.next_update = 3, .dataset_size = 100, .global_batch = 8};
  EXPECT_EQ(in_batches_of(state, 4).next_update, 6);
  state.next_update = int64_t{1} << 62;  // times 8 it would be 0
  EXPECT_TRUE(says(error_message_of([&] { in_batches_of(state, 4); }),
                   "update 4611686018427387904 of 8 samples each"));
}

}  // namespace
}  // namespace fleet
