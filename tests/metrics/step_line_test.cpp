// SPDX-License-Identifier: Apache-2.0
#include "fleet/metrics/step_line.h"

#include <gtest/gtest.h>

namespace fleet {
namespace {

TEST(StepLineTest, IsTheGuides) {
  EXPECT_EQ(
      step_line(
          {.worker_index = 1, .step = 9, .cost = 10.5, .step_time_s = 0.125, .total_time_s = 2.5}),
      "worker_index: 1, step9 cost = 10.500000, total time cost = 2.500000, "
      "step per second: 4.000000, speed: 8.000000");
}

TEST(StepLineTest, NeverPrintsInfinity) {
  EXPECT_EQ(step_line({}),
            "worker_index: 0, step0 cost = 0.000000, total time cost = 0.000000, "
            "step per second: 0.000000, speed: 0.000000");
}

TEST(BatchLineTest, IsTheGuides) {
  EXPECT_EQ(batch_line({.epoch = 0, .batch = 0, .loss = 0.124321, .acc1 = 0, .acc5 = 0.0625}),
            "[Epoch 0, batch 0] loss: 0.12432, acc1: 0.00000, acc5: 0.06250");
  EXPECT_EQ(batch_line({.epoch = 0, .batch = 5, .loss = 1.01921}),
            "[Epoch 0, batch 5] loss: 1.01921, acc1: 0.00000, acc5: 0.00000");
}

}  // namespace
}  // namespace fleet
