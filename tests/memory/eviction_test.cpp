// SPDX-License-Identifier: Apache-2.0
// Which values are evicted first. The times of ops are given, not measured.
#include <memory>
#include <vector>

#include <ATen/core/dispatch/Dispatcher.h>
#include <gtest/gtest.h>

#include "fleet/memory/allocator/budget_allocator.h"
#include "fleet/memory/eviction/eviction_pool.h"
#include "fleet/memory/replay/region.h"
#include "fleet/memory/tape/tape_values.h"

namespace fleet::memory {
namespace {

const c10::OperatorHandle& tanh_op() {
  static const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("aten::tanh", "");
  return op;
}

// Segments of one forward, whose values may be evicted.
class Eviction : public ::testing::Test {
 protected:
  struct Made {
    std::shared_ptr<KeptValue> kept;
    int value = -1, storage = -1;
  };

  void begin_segment() {
    regions_.push_back(std::make_shared<Region>(nullptr, values_.provenance(), next_));
    regions_.back()->set_open_records(&records_);
    regions_.back()->evict_on_demand();
  }

  // An op that took so long, and read the result of another. Its own is kept.
  Made op(double seconds, const Made& input) {
    auto record = std::make_shared<OpRecord>(next_, tanh_op(), OpTraits::of(tanh_op()));
    if (input.value >= 0) record->inputs.push_back({.value = input.value});
    auto& region = regions_.back();
    const auto tensor = torch::ones({64, 1024});
    const int value = values_.number_of(tensor, next_, region.get());
    record->outputs.push_back({.value = value, .numel = tensor.numel()});
    records_.records.push_back(record);
    ++next_;
    region->pool()->add_op(*record, values_, seconds);
    const auto kept =
        std::make_shared<KeptValue>(tensor, KeptValue::Origin{.value = value, .time = next_});
    region->add(kept);
    return {.kept = kept, .value = value, .storage = values_.storage_id_of(value)};
  }

  Made op(double seconds) { return op(seconds, Made()); }

  // The op that was called last saves it.
  void save(const Made& made) { regions_.back()->pool()->add(made.kept, made.storage, next_ - 1); }

  void ops(int count) {
    for (int i = 0; i < count; ++i) op(1);
  }

  BudgetAllocatorScope on_{BudgetAllocator::cpu()};
  TapeValues values_{/*lists_values=*/false};
  OpRecords records_;
  std::vector<std::shared_ptr<Region>> regions_;
  int next_ = 0;
};

// Backward reads a value once for every op that saved it. What counts is the next of them, not
// where the value was made.
TEST_F(Eviction, KnowsEveryReaderOfAValue) {
  begin_segment();
  const auto often = op(1), once = op(1);
  ops(8);
  save(once);
  ops(6);
  save(often);
  ops(6);
  save(often);
  auto* const pool = regions_.back()->pool();
  pool->forward_ended();
  pool->reached(16);  // behind the last reader, and just before the one before it
  EXPECT_GT(EvictionPool::evict(1), 0);
  EXPECT_TRUE(often.kept->is_resident());
  EXPECT_FALSE(once.kept->is_resident());
}

// After the last of its readers a value only serves to recompute others.
TEST_F(Eviction, PrefersValuesThatNoBackwardReadsAnyMore) {
  begin_segment();
  const auto read = op(1), next = op(1);
  ops(4);
  save(next);
  ops(4);
  save(read);
  auto* const pool = regions_.back()->pool();
  pool->forward_ended();
  pool->reached(8);
  EXPECT_GT(EvictionPool::evict(1), 0);
  EXPECT_FALSE(read.kept->is_resident());
  EXPECT_TRUE(next.kept->is_resident());
}

// Of two segments the cheaper value is evicted first, whichever was recorded first.
TEST_F(Eviction, ComparesTheValuesOfAllSegments) {
  begin_segment();
  const auto costly = op(100);
  save(costly);
  begin_segment();
  const auto cheap = op(1);
  save(cheap);
  ops(10);
  EXPECT_GT(EvictionPool::evict(1), 0);
  EXPECT_TRUE(costly.kept->is_resident());
  EXPECT_FALSE(cheap.kept->is_resident());
}

// A value becomes costlier to evict with each neighbour that is evicted: of a chain, some stay in
// between, also where one scan serves many evictions.
TEST_F(Eviction, LeavesValuesBetweenThoseThatItEvicts) {
  begin_segment();
  std::vector<Made> chain;
  for (int i = 0; i < 64; ++i) {
    chain.push_back(op(1, chain.empty() ? Made() : chain.back()));
    save(chain.back());
  }
  for (int i = 0; i < 12; ++i) EXPECT_GT(EvictionPool::evict(1), 0);
  int evicted = 0, neighbours = 0;
  for (size_t i = 0; i < chain.size(); ++i) {
    if (chain[i].kept->is_resident()) continue;
    ++evicted;
    if (i > 0 && !chain[i - 1].kept->is_resident()) ++neighbours;
  }
  EXPECT_EQ(evicted, 12);
  EXPECT_EQ(neighbours, 0);
}

// Backward comes to the ops of an earlier segment after those of all later ones.
TEST_F(Eviction, KnowsThatBackwardReadsTheLaterSegmentFirst) {
  begin_segment();
  const auto earlier = op(1);
  save(earlier);
  begin_segment();
  ops(5);
  const auto later = op(1);
  save(later);
  EXPECT_GT(EvictionPool::evict(1), 0);
  EXPECT_FALSE(earlier.kept->is_resident());
  EXPECT_TRUE(later.kept->is_resident());
}

}  // namespace
}  // namespace fleet::memory
