// SPDX-License-Identifier: Apache-2.0
#include "fleet/precision/low_precision_speed.h"

#include <cmath>

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include "fleet/core/torch/cpu_features.h"
#include "fleet/precision/autocast.h"

#include "tests/support/error_of.h"
#include "tests/support/says.h"

namespace fleet::precision {
namespace {

using testing::error_message_of;

TEST(LowPrecisionSpeedTest, IsMeasuredOnce) {
  const int threads = at::get_num_threads();
  torch::manual_seed(3);
  const auto expected = torch::rand({4});
  torch::manual_seed(3);
  for (const auto dtype : {torch::kBFloat16, torch::kHalf}) {
    const double slowdown = low_precision_slowdown(dtype);
    EXPECT_TRUE(std::isfinite(slowdown));
    EXPECT_GT(slowdown, 0);
    EXPECT_EQ(low_precision_slowdown(dtype), slowdown);
  }
  EXPECT_TRUE(torch::equal(torch::rand({4}), expected)) << "it took random numbers";
  EXPECT_EQ(at::get_num_threads(), threads);
}

TEST(LowPrecisionSpeedTest, WarnsExactlyWhereItWouldBeSlower) {
  for (const auto dtype : {torch::kBFloat16, torch::kHalf}) {
    const double slowdown = low_precision_slowdown(dtype);
    if (slowdown > 1 && slowdown < 2) continue;  // where noise decides
    EXPECT_EQ(low_precision_warning(dtype).has_value(), slowdown >= 2);
  }
  EXPECT_FALSE(detail::slowdown_sentence(torch::kHalf, 0.5, ""));
  EXPECT_FALSE(detail::slowdown_sentence(torch::kHalf, 1.1, ""));
  EXPECT_TRUE(says(
      detail::slowdown_sentence(torch::kBFloat16, 12.3, "AVX-512 BF16 or AMX").value_or(""),
      "bf16 runs 12x slower than fp32 on this CPU (no AVX-512 BF16 or AMX): ", "switch amp off"));
  EXPECT_TRUE(says(detail::slowdown_sentence(torch::kHalf, 2.46, "").value_or(""),
                   "fp16 runs 2.5x slower than fp32 on this CPU: "));
}

TEST(LowPrecisionSpeedTest, RefusesOtherTypes) {
  EXPECT_TRUE(says(error_message_of([] { low_precision_slowdown(torch::kFloat); }),
                   "[amp] Float is no low precision"));
}

TEST(CpuFeatures, AmxWithoutPalettesIsNotUsed) {
  using compat::is_amx_broken;
  EXPECT_FALSE(is_amx_broken({}));
  EXPECT_FALSE(is_amx_broken({.has_tiles = true, .max_palette = 1, .max_tiles = 8}));
  EXPECT_TRUE(is_amx_broken({.has_tiles = true}));
  EXPECT_TRUE(is_amx_broken({.has_tiles = true, .max_palette = 1}));
  if (!is_amx_broken(compat::amx_info())) {
    EXPECT_EQ(compat::amx_workaround(), "");
  }
  // Ends the process where tiles are used that cannot be configured.
  const auto x = torch::ones({64, 64}, torch::kBFloat16);
  EXPECT_TRUE(torch::matmul(x, x).equal(torch::full({64, 64}, 64.0, torch::kBFloat16)));
}

}  // namespace
}  // namespace fleet::precision
