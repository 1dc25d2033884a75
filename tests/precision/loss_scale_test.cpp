// SPDX-License-Identifier: Apache-2.0
// How the scale of a GradScaler grows and shrinks; grad_scaler_test.cpp has what it does to
// gradients.
#include <limits>
#include <random>

#include <gtest/gtest.h>

#include "fleet/precision/grad_scaler.h"

#include "tests/support/error_of.h"
#include "tests/support/says.h"

namespace fleet {
namespace {

using testing::error_message_of;

std::vector<bool> random_overflows(size_t length, double share, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<bool> trace(length);
  for (size_t i = 0; i < length; ++i) trace[i] = random() < share * 4294967296.0;
  return trace;
}

// Paddle's rule, written down a second time.
struct PaddlesRule {
  float scale, up, down;
  int up_after, down_after;
  int good = 0, bad = 0;

  void see(bool overflow) {
    if (overflow) {
      good = 0;
      if (++bad == down_after) {
        const float next = scale * down;
        scale = next < 1.f ? 1.f : next;
        bad = 0;
      }
      return;
    }
    bad = 0;
    if (++good == up_after) {
      const float next = scale * up;
      if (next <= std::numeric_limits<float>::max()) scale = next;
      good = 0;
    }
  }
};

TEST(LossScaleTest, FollowsPaddlesRuleToTheBit) {
  constexpr float kHuge = std::numeric_limits<float>::max();
  for (const unsigned seed : {1U, 2U, 3U}) {
    for (const double share : {0.02, 0.3, 0.6}) {
      const GradScalerOptions options{.init_loss_scaling = 32768,
                                      .incr_every_n_steps = 7,
                                      .decr_every_n_nan_or_inf = static_cast<int>(seed),
                                      .incr_ratio = 1.7f,
                                      .max_loss_scaling = kHuge,
                                      .max_skips_in_a_row = 100000};
      GradScaler scaler(options);
      PaddlesRule rule{32768.f, 1.7f, 0.8f, 7, static_cast<int>(seed)};
      for (const bool overflow : random_overflows(3000, share, seed)) {
        scaler.update(overflow);
        rule.see(overflow);
        ASSERT_EQ(static_cast<float>(scaler.scale()), rule.scale);
        ASSERT_EQ(scaler.good_in_a_row(), rule.good);
        ASSERT_EQ(scaler.inverse_scale(), 1.0 / scaler.scale());
      }
    }
  }
}

TEST(LossScaleTest, OnlyOverflowsInARowShrinkTheScale) {
  GradScaler scaler;
  for (int i = 0; i < 20; ++i) scaler.update(i % 2 == 0);
  EXPECT_EQ(scaler.scale(), 32768);
  EXPECT_EQ(scaler.skipped_total(), 10);
  EXPECT_EQ(scaler.skipped_in_a_row(), 0);
  scaler.update(true);
  scaler.update(true);
  EXPECT_EQ(static_cast<float>(scaler.scale()), 32768 * 0.8f);
  EXPECT_EQ(scaler.skipped_in_a_row(), 2);
}

TEST(LossScaleTest, StaysBetweenFloorAndCap) {
  GradScaler scaler({.init_loss_scaling = 8,
                     .incr_every_n_steps = 1,
                     .decr_every_n_nan_or_inf = 1,
                     .incr_ratio = 3,
                     .decr_ratio = 0.5f,
                     .min_loss_scaling = 3,
                     .max_loss_scaling = 100});
  std::vector<double> scales;
  for (const bool overflow : {true, true, true, false, false, false, false, false}) {
    scaler.update(overflow);
    scales.push_back(scaler.scale());
  }
  EXPECT_EQ(scales, (std::vector<double>{4, 3, 3, 9, 27, 81, 100, 100}));
}

TEST(LossScaleTest, AFixedScaleStays) {
  GradScaler scaler({.init_loss_scaling = 0.5f,
                     .incr_every_n_steps = 1,
                     .decr_every_n_nan_or_inf = 1,
                     .use_dynamic_loss_scaling = false});
  for (const bool overflow : {true, false, false, true, true}) scaler.update(overflow);
  EXPECT_EQ(scaler.scale(), 0.5);
  EXPECT_EQ(scaler.skipped_total(), 3);
}

TEST(LossScaleTest, ResumesBitExactly) {
  const GradScalerOptions options{.incr_every_n_steps = 5, .max_skips_in_a_row = 1000};
  const auto trace = random_overflows(400, 0.4, 9);
  GradScaler whole(options);
  GradScaler resumed(options);
  for (size_t i = 0; i < trace.size(); ++i) {
    if (i == 203) resumed.set_state(whole.state());
    whole.update(trace[i]);
    if (i >= 203) {
      resumed.update(trace[i]);
      ASSERT_EQ(resumed.state(), whole.state());
    }
  }
  EXPECT_TRUE(says(error_message_of([&] {
                     resumed.set_state({.scale = std::numeric_limits<float>::infinity()});
                   }),
                   "state is damaged"));
}

TEST(LossScaleTest, RefusesAllBadOptionsAtOnce) {
  const auto text = error_message_of([] {
    const GradScaler scaler({.init_loss_scaling = -1,
                             .incr_every_n_steps = 0,
                             .incr_ratio = 1,
                             .decr_ratio = 1.5f,
                             .max_skips_in_a_row = 0});
  });
  EXPECT_TRUE(says(text, "[grad_scaler] these options do not work", "init_loss_scaling: -1",
                   "incr_every_n_steps: 0", "incr_ratio: 1", "decr_ratio: 1.5",
                   "max_skips_in_a_row: 0"));
  EXPECT_TRUE(says(error_message_of([] { const GradScaler scaler({.init_loss_scaling = 0.25f}); }),
                   "init_loss_scaling 0.25 is below min_loss_scaling 1"));
}

}  // namespace
}  // namespace fleet
