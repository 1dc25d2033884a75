// SPDX-License-Identifier: Apache-2.0
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

namespace {

// These models are so small that a second thread costs more than it brings, above all when tests
// run side by side.
class OneThread : public ::testing::Environment {
  void SetUp() override { at::set_num_threads(1); }
};

[[maybe_unused]] const auto* const g_one_thread =
    ::testing::AddGlobalTestEnvironment(new OneThread);

}  // namespace
