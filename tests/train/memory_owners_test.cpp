// SPDX-License-Identifier: Apache-2.0
// Every byte that a budget counts has an owner with a name.

#include <map>

#include <gtest/gtest.h>

#include "fleet/core/allocation_tag.h"
#include "fleet/data/data_loader.h"
#include "fleet/memory/offload/offload_file.h"
#include "fleet/snapshot/snapshot_copy.h"

#include "tests/train/block_net.h"
#include "tests/train/budget_training.h"

namespace fleet::testing {
namespace {

using memory::BudgetAllocator;

class MemoryTags : public ::testing::Test {
 protected:
  MemoryTags() { before_ = all(); }

  static std::map<std::string, int64_t> all() {
    std::map<std::string, int64_t> tags;
    for (const auto& use : BudgetAllocator::cpu().counter().largest_tags(SIZE_MAX)) {
      tags[use.name] = use.bytes;
    }
    return tags;
  }
  /// Since the test began.
  int64_t bytes_of(const std::string& name) const {
    const auto now = all();
    const auto then = before_.find(name);
    const auto here = now.find(name);
    return (here == now.end() ? 0 : here->second) - (then == before_.end() ? 0 : then->second);
  }

  const memory::BudgetAllocatorScope counting_{BudgetAllocator::cpu()};
  std::map<std::string, int64_t> before_;
};

TEST_F(MemoryTags, ATagNamesWhatItsThreadAllocates) {
  const AllocationTag outer("outer");
  const auto a = torch::empty({1 << 20}, torch::kByte);
  {
    const AllocationTag inner("inner");
    const auto b = torch::empty({2 << 20}, torch::kByte);
    EXPECT_EQ(bytes_of("inner"), 2 << 20);
  }
  const auto c = torch::empty({4 << 20}, torch::kByte);
  EXPECT_EQ(bytes_of("outer"), 5 << 20);
  EXPECT_EQ(bytes_of("inner"), 0);
}

TEST_F(MemoryTags, AreNamedForParametersGradientsAndState) {
  auto net = deep_net(/*norm=*/false);
  auto optimizer = distributed_optimizer(
      std::make_unique<optim::Adam>(net, optim::AdamOptions{.lr = 1e-3}), within("1GiB"));
  int64_t values = 0;
  for (const auto& group : optimizer.arena().groups()) {
    values += static_cast<int64_t>(group.values.nbytes());
  }
  for (int i = 0; i < 4; ++i) {
    optimizer.minimize(small_batch(256, i),
                       [&](const Batch& micro_batch) { return mean_loss(net, micro_batch); });
  }
  EXPECT_EQ(bytes_of(allocation::kParameters), memory::counted_bytes(values));
  EXPECT_GE(bytes_of(allocation::kGradients), values);
  EXPECT_LE(bytes_of(allocation::kGradients), values + 4096) << "with its head";
  EXPECT_GE(bytes_of(allocation::kOptimizerState), 2 * memory::counted_bytes(values));
  EXPECT_LE(bytes_of(allocation::kOptimizerState), 2 * memory::counted_bytes(values) + 4096)
      << "with the number of each parameter's updates";
  EXPECT_LE(bytes_of(allocation::kProgram), 4096) << "all else came and went";
  EXPECT_FALSE(all().contains("unknown"));
}

// What is kept of each term until the last micro-batch.
TEST_F(MemoryTags, AreNamedForTheGradientsOfLossTerms) {
  auto net = deep_net(/*norm=*/false);
  auto optimizer =
      distributed_optimizer(std::make_unique<optim::SGD>(net, optim::SgdOptions{.lr = 1e-3}),
                            {.gradient_merge = true, .gradient_merge_configs = {.k_steps = 3}});
  int64_t values = 0;
  for (const auto& group : optimizer.arena().groups()) {
    values += static_cast<int64_t>(group.values.nbytes());
  }
  for (int i = 0; i < 6; ++i) {
    const auto batch = small_batch(256, i);
    const auto report = optimizer.minimize([&]() -> Loss {
      const auto scores = net->forward(batch.data);
      return LossTerms{.terms = {{scores.square().sum(), 256}, {scores.sum(), 128}}};
    });
    const int64_t copies = report.in_window ? 3 : 1;  // the arena's, and one for each term
    EXPECT_GE(bytes_of(allocation::kGradients), copies * values);
    EXPECT_LE(bytes_of(allocation::kGradients), copies * values * 11 / 10 + 8192);
    EXPECT_LE(bytes_of(allocation::kProgram), 12288) << "the batch";
    for (const auto& [name, bytes] : all()) {
      if (name.starts_with("aten::") || name.ends_with("Backward0")) {
        EXPECT_LE(bytes_of(name), 8192) << name;
      }
    }
  }
}

TEST_F(MemoryTags, AreNamedForLocalSgd) {
  std::vector<int64_t> bytes(2);
  run_ranks(2, [&](const Comm& comm) {
    BlockNet net{BlockNetOptions{.width = 64}};
    DistributedOptimizer optimizer(
        std::make_unique<optim::Momentum>(net, optim::MomentumOptions{.lr = 0.1}),
        {.localsgd = true,
         .localsgd_configs = {.k_steps = 2, .outer = "slow_momentum", .outer_momentum = 0.5}},
        comm);
    comm->barrier("test");
    if (comm->rank() == 0) {
      bytes[0] = bytes_of(allocation::kLocalSgd);
      bytes[1] = bytes_of(allocation::kParameters);
    }
    comm->barrier("test");
  });
  EXPECT_GE(bytes[0], 3 * bytes[1]) << "anchor, change, velocity";
}

TEST_F(MemoryTags, AreNamedForSnapshotsStagingAndData) {
  const auto tensor = torch::ones({1 << 18});
  SnapshotCopy copy;
  copy.take({.model = {{"a", tensor}}, .optimizer = {}, .own = {}});
  EXPECT_GE(bytes_of(allocation::kSnapshot), 1 << 20);

  const auto staging = bytes_of(allocation::kStaging);
  const memory::OffloadFile file({.buffer_bytes = 1 << 20});
  EXPECT_EQ(bytes_of(allocation::kStaging) - staging, 1 << 20);

  struct Numbers : Dataset {
    int64_t size() const override { return 64; }
    Batch get(std::span<const int64_t> indices, int64_t) const override {
      const auto n = static_cast<int64_t>(indices.size());
      return {torch::ones({n, 1 << 14}), torch::zeros({n}, torch::kLong)};
    }
  };
  for (const int64_t prefetch : {0, 2}) {
    DataLoader loader(std::make_shared<Numbers>(), {.batch_size = 16, .prefetch = prefetch});
    for (const auto& batch : loader) {
      EXPECT_GE(bytes_of(allocation::kData), static_cast<int64_t>(batch.data.nbytes()));
    }
  }
  EXPECT_EQ(bytes_of(allocation::kData), 0);
}

}  // namespace
}  // namespace fleet::testing
