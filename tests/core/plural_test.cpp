// SPDX-License-Identifier: Apache-2.0
#include "fleet/core/text/plural.h"

#include <gtest/gtest.h>

namespace fleet {
namespace {

TEST(PluralTest, OneIsNotMany) {
  EXPECT_EQ(plural(0, "sample"), "0 samples");
  EXPECT_EQ(plural(1, "sample"), "1 sample");
  EXPECT_EQ(plural(2, "sample"), "2 samples");
  EXPECT_EQ(plural(1, "batch", "batches"), "1 batch");
  EXPECT_EQ(plural(3, "batch", "batches"), "3 batches");
}

}  // namespace
}  // namespace fleet
