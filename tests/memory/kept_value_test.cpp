#include "fleet/memory/kept_value.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tests/support/error_of.h"
#include "tests/support/says.h"

namespace fleet::memory {
namespace {

using testing::error_of;
using torch::Tensor;

std::shared_ptr<KeptValue> source(const Tensor& tensor, KeptValue::Origin origin = {.value = 0}) {
  auto kept = std::make_shared<KeptValue>(tensor, origin);
  kept->become_source();
  return kept;
}

// What an op of a tape does.
void write(const Tensor& tensor) {
  KeptValue::before_write(tensor);
  tensor.mul_(2);
  KeptValue::after_write(tensor);
}

TEST(KeptValueTest, WritesCopyWhatTheyOverlapAndNothingBesideIt) {
  const auto flat = torch::arange(40.0);
  const auto first = source(flat.narrow(0, 0, 10));
  const auto second = source(flat.narrow(0, 10, 10));
  const auto rows = source(flat.narrow(0, 20, 20).view({4, 5}).t());
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

TEST(KeptValueTest, AWriteThatNobodySawIsNotForgivenByALaterOne) {
  const auto flat = torch::arange(40.0);
  const auto first = source(flat.narrow(0, 0, 10));
  flat.narrow(0, 3, 1).zero_();
  write(flat.narrow(0, 20, 10));
  EXPECT_TRUE(says(error_of([&] { first->get(); }), "changed in place after the forward"));
}

TEST(KeptValueTest, SparseSourcesAreCopiedBeforeTheirValuesChange) {
  const auto dense = torch::diag(torch::arange(1.0, 5.0));
  const auto sparse = dense.to_sparse();
  const auto kept = source(sparse);
  write(sparse);
  EXPECT_TRUE(kept->get().to_dense().equal(dense));
  const auto again = source(sparse);
  write(sparse._values());
  EXPECT_TRUE(again->get().to_dense().equal(dense * 2));
  EXPECT_TRUE(sparse.to_dense().equal(dense * 4));
}

TEST(KeptValueTest, NothingIsLookedOutForOnceItIsGoneOrCopied) {
  const auto before = KeptValue::listed_sources();
  const auto flat = torch::arange(40.0);
  {
    const auto given_up = source(flat.narrow(0, 0, 10));
    const auto copied = source(flat.narrow(0, 10, 10));
    const auto stays = source(flat.narrow(0, 20, 10));
    EXPECT_EQ(KeptValue::listed_sources() - before, 3);
    given_up->give_up();
    EXPECT_EQ(KeptValue::listed_sources() - before, 2);
    copied->copy_out();
    EXPECT_EQ(KeptValue::listed_sources() - before, 1);
    given_up->take_back(flat.narrow(0, 0, 10));
    EXPECT_EQ(KeptValue::listed_sources() - before, 2);
  }
  EXPECT_EQ(KeptValue::listed_sources(), before);
}

// A replay may start from a copy, which begins elsewhere in its storage than the original did.
TEST(KeptValueTest, ComesBackWhereverItLiesInTheReplaysStorage) {
  const auto whole = torch::randn({6, 6});
  const auto value = whole.narrow(0, 3, 3);  // 18 elements into its storage
  KeptValue kept(value.t(), {.value = 0});
  KeptValue row(value.select(0, 2), {.value = 0, .is_view = true, .from_value = 12});
  KeptValue copied(value, {.value = 0});
  copied.copy_out();
  EXPECT_TRUE(copied.tensor().equal(value));
  ASSERT_EQ(copied.tensor().storage_offset(), 0);
  kept.give_up();
  kept.refill(copied.tensor().t());
  EXPECT_TRUE(kept.get().equal(value.t()));
  row.give_up();
  row.refill(copied.tensor());
  EXPECT_TRUE(row.get().equal(value.select(0, 2)));
}

TEST(KeptValueTest, ComesBackConjugatedAndNegated) {
  const auto z = torch::randn({4, 3}, torch::kComplexFloat);
  for (const auto& tensor : {torch::conj(z), torch::imag(torch::conj(z)), z}) {
    KeptValue kept(tensor, {.value = 0});
    const auto expected = tensor.clone();
    kept.copy_out();
    EXPECT_TRUE(kept.get().equal(expected));
    EXPECT_EQ(kept.get().is_conj(), tensor.is_conj());
    EXPECT_EQ(kept.get().is_neg(), tensor.is_neg());
    EXPECT_FALSE(kept.has_geometry_of(tensor.is_conj() ? z : torch::conj(z)));
  }
}

}  // namespace
}  // namespace fleet::memory
