// SPDX-License-Identifier: Apache-2.0
#include "fleet/ops/swiglu.h"

#include <gtest/gtest.h>

#include "tests/ops/agreement.h"
#include "tests/support/error_of.h"

namespace fleet::ops {
namespace {

using testing::Tensors;

TEST(SwigluTest, IsTheFormulaForOddEmptyAndLargeShapes) {
  const auto op = [](const Tensors& x) { return swiglu(x[0]); };
  for (const auto& sizes :
       std::vector<std::vector<int64_t>>{{3, 10}, {2, 5, 130}, {4, 2}, {6}, {0, 8}, {2, 4098}}) {
    torch::manual_seed(61);
    const auto x = torch::randn(sizes, torch::kDouble) * 4;
    testing::expect_agreement(op, {x}, 2e-6);
    testing::expect_agreement(op, {x}, 2e-2, torch::kBFloat16);
  }
}

TEST(SwigluTest, TakesViewsAndRefusesOddWidths) {
  torch::manual_seed(62);
  const auto x = torch::randn({10, 4, 6});
  EXPECT_TRUE(swiglu(x.transpose(0, 1)).equal(swiglu(x.transpose(0, 1).contiguous())));
  EXPECT_NE(testing::error_message_of([] {
              swiglu(torch::ones({2, 3}));
            }).find("two halves"),
            std::string::npos);
}

TEST(SwigluTest, LargeGatesAreAsLibTorchs) {
  const auto x = torch::tensor({{200.0f, -200.0f, 2.0f, 3.0f}});
  const auto expected = torch::silu(x.narrow(1, 0, 2)) * x.narrow(1, 2, 2);
  EXPECT_LE(testing::relative_error(swiglu(x), expected), 1e-6);
}

}  // namespace
}  // namespace fleet::ops
