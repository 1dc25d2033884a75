// SPDX-License-Identifier: Apache-2.0
#include "fleet/data/data_loader.h"

#include <atomic>
#include <chrono>
#include <memory>
#include <numeric>
#include <thread>

#include <gtest/gtest.h>

#include "fleet/core/error.h"
#include "fleet/data/images/in_memory_images.h"

#include "tests/support/error_of.h"
#include "tests/support/patience.h"
#include "tests/support/says.h"

namespace fleet {
namespace {

using testing::error_message_of;

// Its samples are their own indices; the data carry the epoch too.
class Counting : public Dataset {
 public:
  explicit Counting(int64_t size) : size_(size) {}
  int64_t size() const override { return size_; }
  Batch get(std::span<const int64_t> indices, int64_t epoch) const override {
    ++calls;
    if (std::find(indices.begin(), indices.end(), broken) != indices.end()) {
      throw Error("data", "sample 13 is broken");
    }
    const auto x = torch::tensor(at::IntArrayRef(indices.data(), indices.size()), torch::kInt64);
    return {x + 1000 * epoch, x};
  }

  mutable std::atomic<int> calls = 0;
  int64_t broken = -1;

 private:
  int64_t size_;
};

std::vector<int64_t> values(const torch::Tensor& tensor) {
  const auto flat = tensor.contiguous();
  return {flat.const_data_ptr<int64_t>(), flat.const_data_ptr<int64_t>() + flat.numel()};
}

std::vector<std::vector<int64_t>> epoch_of(DataLoader<>& loader, int64_t epoch) {
  std::vector<std::vector<int64_t>> batches;
  for (const Batch& batch : loader.epoch(epoch)) batches.push_back(values(batch.data));
  return batches;
}

TEST(DataLoaderTest, YieldsTheSamplersBatches) {
  for (const int64_t prefetch : {0, 1, 2, 50}) {
    DataLoader loader(
        std::make_shared<Counting>(50),
        {.batch_size = 4, .seed = 7, .rank = 1, .world_size = 3, .prefetch = prefetch});
    ShardedSampler sampler(50, {.batch_size = 4, .seed = 7, .rank = 1, .world_size = 3});
    sampler.seek(3);
    const auto batches = epoch_of(loader, 3);
    ASSERT_EQ(std::ssize(batches), loader.batches_per_epoch());
    for (const auto& batch : batches) {
      auto expected = sampler.next();
      for (auto& value : expected) value += 3000;
      EXPECT_EQ(batch, expected);
    }
  }
}

// A batch that can only be moved, of a data set that derives from nothing.
struct Ticket {
  std::unique_ptr<std::vector<int64_t>> indices;
};
struct Tickets {
  int64_t size() const { return 20; }
  int64_t fingerprint() const { return 77; }
  Ticket get(std::span<const int64_t> indices, int64_t) const {
    return {std::make_unique<std::vector<int64_t>>(indices.begin(), indices.end())};
  }
};
struct Unsized {
  Batch get(std::span<const int64_t>, int64_t) const { return {}; }
};
static_assert(DatasetLike<Tickets> && DatasetLike<Counting> && DatasetLike<Dataset>);
static_assert(!DatasetLike<Unsized> && !DatasetLike<std::string>);

TEST(DataLoaderTest, YieldsBatchesOfAnyType) {
  for (const int64_t prefetch : {0, 3}) {
    DataLoader loader(std::make_shared<Tickets>(),
                      {.batch_size = 6, .seed = 7, .prefetch = prefetch});
    static_assert(std::is_same_v<decltype(loader), DataLoader<Ticket>>);
    EXPECT_EQ(loader.state().fingerprint, 77);
    EXPECT_EQ(loader.dataset().size(), 20);
    ShardedSampler sampler(20, {.batch_size = 6, .seed = 7});
    int64_t batches = 0;
    for (const Ticket& ticket : loader) {
      EXPECT_EQ(*ticket.indices, sampler.next());
      ++batches;
    }
    EXPECT_EQ(batches, 4);
    EXPECT_EQ(loader.state().epoch, 1);
  }
}

TEST(DataLoaderTest, EpochIsAnArgument) {
  DataLoader loader(std::make_shared<Counting>(50), {.batch_size = 8, .seed = 7});
  const auto first = epoch_of(loader, 1);
  epoch_of(loader, 0);
  EXPECT_EQ(epoch_of(loader, 1), first);
}

TEST(DataLoaderTest, YieldsEmptyBatchesToo) {
  DataLoader loader(std::make_shared<Counting>(7),
                    {.batch_size = 3, .rank = 0, .world_size = 2});  // 6, then 1 for two ranks
  std::vector<int64_t> sizes;
  for (const Batch& batch : loader.epoch(0)) sizes.push_back(batch.size());
  EXPECT_EQ(sizes, (std::vector<int64_t>{3, 0}));
}

TEST(DataLoaderTest, PrefetchesNoMoreThanAsked) {
  const auto dataset = std::make_shared<Counting>(100);
  DataLoader loader(dataset, {.batch_size = 1, .prefetch = 3});
  auto epoch = loader.epoch(0);
  EXPECT_EQ(dataset->calls, 0) << "nothing is made before the loop starts";
  epoch.begin();
  // One is in use, three are ready.
  const auto deadline =
      std::chrono::steady_clock::now() + launch::patient(std::chrono::seconds(20));
  while (dataset->calls < 4 && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_EQ(dataset->calls, 4);
}

TEST(DataLoaderTest, StopsCleanlyWhenTheLoopIsLeft) {
  const auto dataset = std::make_shared<Counting>(1000);
  DataLoader loader(dataset, {.batch_size = 1});
  for (int round = 0; round < 100; ++round) {
    int64_t taken = 0;
    for (const Batch& batch : loader.epoch(round)) {
      EXPECT_EQ(batch.size(), 1);
      if (++taken > round % 4) break;
    }
  }
  EXPECT_LT(dataset->calls, 100 * 7);
  EXPECT_EQ(dataset.use_count(), 2) << "no thread holds it any more";
}

TEST(DataLoaderTest, ThrowsInTheLoopWhatTheDatasetThrew) {
  for (const int64_t prefetch : {0, 2}) {
    const auto dataset = std::make_shared<Counting>(40);
    dataset->broken = 13;
    DataLoader loader(dataset, {.batch_size = 2, .shuffle = false, .prefetch = prefetch});
    int64_t taken = 0;
    const auto text = error_message_of([&] {
      for (const Batch& batch : loader.epoch(0)) taken += batch.size();
    });
    EXPECT_TRUE(says(text, "sample 13 is broken"));
    EXPECT_EQ(taken, 12) << "what was made before it is handed out first";
    EXPECT_EQ(loader.state().next_update, 6);
  }
}

TEST(DataLoaderTest, ResumesAsIfNeverStopped) {
  const LoaderOptions options = {.batch_size = 3, .seed = 5, .rank = 1, .world_size = 2};
  const auto dataset = std::make_shared<Counting>(32);
  for (int stop = 1; stop <= 12; ++stop) {  // 6 batches an epoch
    DataLoader straight(dataset, options);
    DataLoader stopped(dataset, options);
    std::vector<std::vector<int64_t>> expected, got;
    for (int64_t epoch = 0; epoch < 3; ++epoch) {
      for (const auto& batch : epoch_of(straight, epoch)) expected.push_back(batch);
    }
    for (int64_t epoch = 0; epoch < 3 && std::ssize(got) < stop; ++epoch) {
      for (const Batch& batch : stopped.epoch(epoch)) {
        got.push_back(values(batch.data));
        if (std::ssize(got) == stop) break;
      }
    }
    DataLoader resumed(dataset, options);
    resumed.restore(stopped.state());
    for (int64_t epoch = resumed.state().epoch; epoch < 3; ++epoch) {
      for (const auto& batch : epoch_of(resumed, epoch)) got.push_back(batch);
    }
    EXPECT_EQ(got, expected) << "stopped after " << stop;
  }
}

TEST(DataLoaderTest, ALoopOverTheLoaderContinuesAfterTheLastBatch) {
  const LoaderOptions options = {.batch_size = 3, .seed = 5};
  const auto dataset = std::make_shared<Counting>(10);
  DataLoader named(dataset, options), loader(dataset, options);
  std::vector<std::vector<int64_t>> expected, got;
  for (int64_t epoch = 0; epoch < 2; ++epoch) {
    for (const auto& batch : epoch_of(named, epoch)) expected.push_back(batch);
  }
  for (const Batch& batch : loader) {
    got.push_back(values(batch.data));
    if (got.size() == 2) break;
  }
  for (const Batch& batch : loader) got.push_back(values(batch.data));
  EXPECT_EQ(got.size(), 4u) << "up to the end of the epoch";
  DataLoader resumed(dataset, options);
  resumed.restore(loader.state());
  for (const Batch& batch : resumed) got.push_back(values(batch.data));
  EXPECT_EQ(got, expected);
}

TEST(DataLoaderTest, RefusesAnotherEpochAfterRestore) {
  const auto dataset = std::make_shared<Counting>(32);
  DataLoader loader(dataset, {.batch_size = 8});
  auto position = loader.state();
  position.epoch = 2;
  position.next_update = 3;
  loader.restore(position);
  EXPECT_TRUE(says(error_message_of([&] { loader.epoch(0); }),
                   "the restored position is update 3 of epoch 2"));
  EXPECT_EQ(epoch_of(loader, 2).size(), 1u) << "the right one still goes on";
  EXPECT_EQ(epoch_of(loader, 0).size(), 4u);
}

TEST(DataLoaderTest, RefusesBadOptions) {
  const auto dataset = std::make_shared<Counting>(3);
  EXPECT_TRUE(
      says(error_message_of([&] { DataLoader(dataset, {.prefetch = -1}); }), "prefetch is -1"));
  EXPECT_TRUE(says(error_message_of([&] { DataLoader(dataset, {.rank = 0, .world_size = 4}); }),
                   "4 ranks are more than the 3 samples"));
  DataLoader loader(dataset, {});
  auto epoch = loader.epoch(0);
  epoch.begin();
  EXPECT_TRUE(says(error_message_of([&] { epoch.begin(); }), "iterated twice"));
}

// Batches of N ranks, put together, are bit for bit those of one, augmentation included.
TEST(DataLoaderTest, RanksSeeTheImagesOfOneLargerRank) {
  const auto pixels = torch::arange(50 * 36).remainder(256).to(torch::kUInt8).view({50, 6, 6});
  const auto images = std::make_shared<InMemoryImages>(
      pixels, torch::arange(50), PixelStatistics{.mean = 0.5, .std = 0.25},
      Augmentation{.flip = true, .max_shift = 2, .seed = 1});
  DataLoader whole(images, {.batch_size = 12, .seed = 3});
  DataLoader part0(images, {.batch_size = 6, .seed = 3, .rank = 0, .world_size = 2});
  DataLoader part1(images, {.batch_size = 6, .seed = 3, .rank = 1, .world_size = 2});
  auto epoch0 = part0.epoch(4);
  auto epoch1 = part1.epoch(4);
  auto batch0 = epoch0.begin();
  auto batch1 = epoch1.begin();
  for (const Batch& batch : whole.epoch(4)) {
    EXPECT_TRUE(torch::equal(batch.data, torch::cat({batch0->data, batch1->data})));
    EXPECT_TRUE(torch::equal(batch.target, torch::cat({batch0->target, batch1->target})));
    ++batch0, ++batch1;
  }
}

}  // namespace
}  // namespace fleet
