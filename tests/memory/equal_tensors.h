// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include <gtest/gtest.h>
#include <torch/types.h>

namespace fleet::memory {

/// Bit for bit.
inline void expect_equal(const std::vector<torch::Tensor>& ours,
                         const std::vector<torch::Tensor>& plain) {
  ASSERT_EQ(ours.size(), plain.size());
  for (size_t i = 0; i < ours.size(); ++i) EXPECT_TRUE(ours[i].equal(plain[i])) << i;
}

}  // namespace fleet::memory
