// SPDX-License-Identifier: Apache-2.0
#include "fleet/memory/allocator/budget_amount.h"

#include <gtest/gtest.h>

#include "fleet/core/text/byte_size.h"

namespace fleet::memory {
namespace {

using Unit = BudgetAmount::Unit;

constexpr int64_t kGiB = int64_t{1} << 30;

TEST(BudgetAmountTest, HasThreeUnits) {
  EXPECT_EQ(BudgetAmount::parse("12GiB")->bytes, 12 * kGiB);
  EXPECT_EQ(BudgetAmount::parse("12GiB")->unit, Unit::kBytes);
  EXPECT_EQ(BudgetAmount::parse("60%")->unit, Unit::kFractionOfLimit);
  EXPECT_DOUBLE_EQ(BudgetAmount::parse("60%")->fraction, 0.6);
  for (const char* text : {"50% of plain", "50%  of  plain", "50%of plain"}) {
    const auto amount = BudgetAmount::parse(text);
    ASSERT_TRUE(amount) << text;
    EXPECT_EQ(amount->unit, Unit::kFractionOfPlain);
    EXPECT_DOUBLE_EQ(amount->fraction, 0.5);
  }
  for (const char* text : {"", "0", "-1GiB", "0%", "101%", "%", "a lot", "60%%", "50% plain",
                           "50% of plane", "50 % of plain", "nan%", "60% of", "5e-324%"}) {
    EXPECT_FALSE(BudgetAmount::parse(text)) << text;
  }
}

TEST(BudgetAmountTest, AFewBytesWereMeantInAnotherUnit) {
  for (const char* text : {"60", "0.5", "1048575", "6e1"}) {
    EXPECT_FALSE(BudgetAmount::parse(text)) << text;
  }
  EXPECT_EQ(BudgetAmount::parse("60B")->bytes, 60);
  EXPECT_EQ(BudgetAmount::parse("1048576")->bytes, 1 << 20);
  EXPECT_EQ(BudgetAmount::fix_for("60"),
            "write 60% of what this rank may have, \"60% of plain\" training, or a size with its "
            "unit like 60MiB");
  EXPECT_EQ(BudgetAmount::fix_for("4096"), "write a size with its unit like 4096MiB");
  EXPECT_EQ(BudgetAmount::fix_for("60GB of plain"), BudgetAmount::fix_for("much"));
}

TEST(BudgetAmountTest, ASharesOfTheLimitIsDividedAmongTheRanksOfTheHost) {
  const MemoryLimit limit{.bytes = 16 * kGiB, .source = "control group /job"};
  const auto half = *BudgetAmount::parse("50%");
  EXPECT_EQ(half.of(limit, 1), 8 * kGiB);
  EXPECT_EQ(half.of(limit, 2), 4 * kGiB);
  EXPECT_EQ(half.of(limit, 8), kGiB);
  EXPECT_EQ(half.derivation(limit, 2), "50% of 16.00 GiB (control group /job) shared by 2 ranks");
  EXPECT_EQ(BudgetAmount::parse("3GiB")->of(limit, 8), 3 * kGiB) << "a size is each rank's own";
  // What a rank may have, until plain training has been measured.
  EXPECT_EQ(BudgetAmount::parse("50% of plain")->of(limit, 2), 8 * kGiB);
}

TEST(BudgetAmountTest, ItsTextStandsForNoLess) {
  EXPECT_EQ(budget_text(12 * kGiB), "12.00GiB");
  EXPECT_EQ(budget_text(1000), "1000B");
  for (int64_t bytes = 1; bytes < 20 * kGiB; bytes = bytes * 17 / 5 + 3) {
    EXPECT_GE(byte_size(budget_text(bytes)).value_or(0), bytes) << budget_text(bytes);
    EXPECT_LE(byte_size(budget_text(bytes)).value_or(0), bytes + bytes / 99 + 1);
  }
}

}  // namespace
}  // namespace fleet::memory
