// SPDX-License-Identifier: Apache-2.0
#include "fleet/memory/tape/kept_value.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "fleet/memory/tape/copy_on_write.h"

#include "tests/support/error_of.h"
#include "tests/support/says.h"

namespace fleet::memory {
namespace {

using testing::error_message_of;
using torch::Tensor;

std::shared_ptr<KeptValue> replay_input(const Tensor& tensor,
                                        KeptValue::Origin origin = {.value = 0}) {
  auto kept = std::make_shared<KeptValue>(tensor, origin);
  kept->become_replay_input();
  return kept;
}

// What an op of a tape does.
void write(const Tensor& tensor) {
  copy_on_write(tensor);
  tensor.mul_(2);
  after_write(tensor);
}

TEST(KeptValueTest, WritesCopyWhatTheyOverlapAndNothingBesideIt) {
  const auto flat = torch::arange(40.0);
  const auto first = replay_input(flat.narrow(0, 0, 10));
  const auto second = replay_input(flat.narrow(0, 10, 10));
  const auto rows = replay_input(flat.narrow(0, 20, 20).view({4, 5}).t());
  const auto before = KeptValue::copies();
  write(flat.narrow(0, 12, 3));  // which shares a version counter with all of them
  EXPECT_EQ(KeptValue::copies() - before, 1);
  EXPECT_TRUE(first->get().equal(torch::arange(10.0)));
  EXPECT_TRUE(second->get().equal(torch::arange(10.0, 20.0)));
  EXPECT_TRUE(first->tensor().is_alias_of(flat));
  EXPECT_FALSE(second->tensor().is_alias_of(flat));
  write(flat.narrow(0, 39, 1));
  EXPECT_EQ(KeptValue::copies() - before, 2);
  EXPECT_TRUE(rows->get().equal(torch::arange(20.0, 40.0).view({4, 5}).t()));
  EXPECT_EQ(rows->get().strides(), flat.narrow(0, 20, 20).view({4, 5}).t().strides());
}

TEST(KeptValueTest, AnUnrecordedWriteStaysAnErrorAfterARecordedOne) {
  const auto flat = torch::arange(40.0);
  const auto first = replay_input(flat.narrow(0, 0, 10));
  flat.narrow(0, 3, 1).zero_();
  write(flat.narrow(0, 20, 10));
  EXPECT_TRUE(says(error_message_of([&] { first->get(); }), "changed in place after the forward"));
}

TEST(KeptValueTest, SparseReplayInputsAreCopiedBeforeTheirValuesChange) {
  const auto dense = torch::diag(torch::arange(1.0, 5.0));
  const auto sparse = dense.to_sparse();
  const auto kept = replay_input(sparse);
  write(sparse);
  EXPECT_TRUE(kept->get().to_dense().equal(dense));
  const auto again = replay_input(sparse);
  write(sparse._values());
  EXPECT_TRUE(again->get().to_dense().equal(dense * 2));
  EXPECT_TRUE(sparse.to_dense().equal(dense * 4));
}

TEST(KeptValueTest, OnlySharedReplayInputsAreListed) {
  const auto before = ReplayInputs::get().size();
  const auto flat = torch::arange(40.0);
  {
    const auto evicted = replay_input(flat.narrow(0, 0, 10));
    const auto copied = replay_input(flat.narrow(0, 10, 10));
    const auto stays = replay_input(flat.narrow(0, 20, 10));
    EXPECT_EQ(ReplayInputs::get().size() - before, 3);
    evicted->evict();
    EXPECT_EQ(ReplayInputs::get().size() - before, 2);
    copied->copy_to_own_memory();
    EXPECT_EQ(ReplayInputs::get().size() - before, 1);
    evicted->take_back(flat.narrow(0, 0, 10));
    EXPECT_EQ(ReplayInputs::get().size() - before, 2);
  }
  EXPECT_EQ(ReplayInputs::get().size(), before);
}

// A replay may start from a copy, which begins elsewhere in its storage than the original did.
TEST(KeptValueTest, IsRefilledFromAnyOffsetInTheReplaysStorage) {
  const auto whole = torch::randn({6, 6});
  const auto value = whole.narrow(0, 3, 3);  // 18 elements into its storage
  KeptValue kept(value.t(), {.value = 0});
  KeptValue row(value.select(0, 2), {.value = 0, .is_view = true, .from_value = 12});
  KeptValue copied(value, {.value = 0});
  copied.copy_to_own_memory();
  EXPECT_TRUE(copied.tensor().equal(value));
  ASSERT_EQ(copied.tensor().storage_offset(), 0);
  kept.evict();
  kept.refill(copied.tensor().t());
  EXPECT_TRUE(kept.get().equal(value.t()));
  row.evict();
  row.refill(copied.tensor());
  EXPECT_TRUE(row.get().equal(value.select(0, 2)));
}

TEST(KeptValueTest, CopiesStayConjugatedAndNegated) {
  const auto z = torch::randn({4, 3}, torch::kComplexFloat);
  for (const auto& tensor : {torch::conj(z), torch::imag(torch::conj(z)), z}) {
    KeptValue kept(tensor, {.value = 0});
    const auto expected = tensor.clone();
    kept.copy_to_own_memory();
    EXPECT_TRUE(kept.get().equal(expected));
    EXPECT_EQ(kept.get().is_conj(), tensor.is_conj());
    EXPECT_EQ(kept.get().is_neg(), tensor.is_neg());
    EXPECT_FALSE(kept.has_geometry_of(tensor.is_conj() ? z : torch::conj(z)));
  }
}

using enum KeptValue::State;

TEST(KeptValueTest, MovesBetweenItsStates) {
  const auto tensor = torch::arange(4.0);
  KeptValue kept(tensor, {.value = 0});
  EXPECT_EQ(kept.state(), kShared);
  kept.evict();
  EXPECT_EQ(kept.state(), kEvicted);
  kept.evict();
  EXPECT_EQ(kept.state(), kEvicted);
  kept.refill(tensor.clone());
  EXPECT_EQ(kept.state(), kRecomputed);
  kept.copy_to_own_memory();
  EXPECT_EQ(kept.state(), kRecomputed);
  kept.evict_recomputed();
  kept.take_back(tensor);
  EXPECT_EQ(kept.state(), kShared);
  kept.copy_to_own_memory();
  EXPECT_EQ(kept.state(), kOwned);
  kept.evict_recomputed();
  EXPECT_EQ(kept.state(), kOwned);
}

TEST(KeptValueTest, RejectsIllegalMoves) {
  KeptValue kept(torch::arange(4.0), {.value = 0});
  EXPECT_TRUE(says(error_message_of<std::exception>([&] { kept.refill(torch::arange(4.0)); }),
                   "a kept value that is shared cannot become recomputed"));
}

TEST(KeptValueTest, WhatIsLostStaysLost) {
  KeptValue kept(torch::arange(4.0), {.value = 0});
  kept.set_lost();
  kept.copy_to_own_memory();
  EXPECT_EQ(kept.state(), kLost);
  EXPECT_TRUE(says(error_message_of([&] { kept.get(); }), "changed in place after the forward"));
}

// As with a segment that evicts all its values, and a replay that was asked for others.
TEST(KeptValueTest, WhatIsLostIsNeitherEvictedNorRefilled) {
  const auto tensor = torch::arange(4.0);
  KeptValue kept(tensor, {.value = 0});
  kept.set_lost();
  kept.evict();
  EXPECT_EQ(kept.state(), kLost);
  EXPECT_TRUE(kept.is_resident());
  EXPECT_TRUE(says(error_message_of([&] { kept.get(); }), "changed in place after the forward"));
  EXPECT_TRUE(says(error_message_of<std::exception>([&] { kept.refill(tensor.clone()); }),
                   "a kept value that is lost cannot become recomputed"));
  EXPECT_TRUE(says(error_message_of<std::exception>([&] { kept.take_back(tensor); }),
                   "a kept value that is lost cannot become shared"));
}

}  // namespace
}  // namespace fleet::memory
