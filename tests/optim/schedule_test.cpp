// SPDX-License-Identifier: Apache-2.0
#include "fleet/optim/schedule/schedule.h"

#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include "fleet/core/error.h"

#include "tests/support/error_of.h"

namespace fleet::optim {
namespace {

using testing::error_message_of;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

std::vector<Schedule> one_of_each() {
  return {constant(0.3),
          linear({.lr = 0.4, .end_lr = 0.1, .updates = 30}),
          polynomial({.lr = 0.4, .end_lr = 0.1, .power = 2, .updates = 30}),
          polynomial({.lr = 0.4, .power = 0.5, .updates = 30}),
          cosine({.lr = 0.4, .end_lr = 0.1, .updates = 30}),
          piecewise({.boundaries = {10, 20}, .values = {0.4, 0.2, 0.1}}),
          exponential({.lr = 0.4, .gamma = 0.5, .every = 7}),
          exponential({.lr = 0.4, .gamma = 0.5, .every = 7, .staircase = true}),
          inverse_sqrt({.lr = 0.4, .offset = 7})};
}

TEST(ScheduleTest, LinearGoesStraightToTheEndAndStays) {
  const auto rate = linear({.lr = 1, .end_lr = 0.2, .updates = 8});
  EXPECT_EQ(rate(0), 1);
  EXPECT_DOUBLE_EQ(rate(1), 0.9);
  EXPECT_DOUBLE_EQ(rate(4), 0.6);
  EXPECT_DOUBLE_EQ(rate(7), 0.3);
  EXPECT_EQ(rate(8), 0.2);
  EXPECT_EQ(rate(1'000'000'000'000), 0.2);
}

TEST(ScheduleTest, PolynomialHasItsPower) {
  const auto square = polynomial({.lr = 3, .end_lr = 1, .power = 2, .updates = 4});
  EXPECT_EQ(square(0), 3);
  EXPECT_DOUBLE_EQ(square(1), 1 + 2 * 0.5625);
  EXPECT_DOUBLE_EQ(square(2), 1.5);
  EXPECT_EQ(square(4), 1);
  EXPECT_EQ(square(5), 1);
  const auto root = polynomial({.lr = 2, .power = 0.5, .updates = 4});
  EXPECT_DOUBLE_EQ(root(3), 1);
}

TEST(ScheduleTest, CosineIsHalfAPeriod) {
  const auto rate = cosine({.lr = 1, .end_lr = 0.2, .updates = 12});
  EXPECT_EQ(rate(0), 1);
  EXPECT_NEAR(rate(2), 0.2 + 0.8 * (1 + std::sqrt(0.75)) / 2, 1e-15);
  EXPECT_NEAR(rate(4), 0.8, 1e-15);
  EXPECT_NEAR(rate(6), 0.6, 1e-15);
  EXPECT_EQ(rate(12), 0.2);
  EXPECT_EQ(rate(24), 0.2);  // no restart
}

TEST(ScheduleTest, PiecewiseChangesAtTheBoundaryItself) {
  const auto rate = piecewise({.boundaries = {30, 60}, .values = {0.1, 0.01, 0.001}});
  EXPECT_EQ(rate(0), 0.1);
  EXPECT_EQ(rate(29), 0.1);
  EXPECT_EQ(rate(30), 0.01);
  EXPECT_EQ(rate(59), 0.01);
  EXPECT_EQ(rate(60), 0.001);
  EXPECT_EQ(rate(1000), 0.001);
  EXPECT_EQ(piecewise({.boundaries = {}, .values = {0.5}})(7), 0.5);
}

TEST(ScheduleTest, ExponentialIsSmoothOrAStaircase) {
  const auto smooth = exponential({.lr = 0.8, .gamma = 0.25, .every = 10});
  EXPECT_EQ(smooth(0), 0.8);
  EXPECT_DOUBLE_EQ(smooth(5), 0.4);
  EXPECT_DOUBLE_EQ(smooth(20), 0.05);
  const auto stairs = exponential({.lr = 0.8, .gamma = 0.25, .every = 10, .staircase = true});
  EXPECT_EQ(stairs(9), 0.8);
  EXPECT_DOUBLE_EQ(stairs(10), 0.2);
  EXPECT_DOUBLE_EQ(stairs(19), 0.2);
}

TEST(ScheduleTest, InverseSquareRootBehindAWarmupIsTheTransformers) {
  const double width = 512, updates = 4000;
  const auto rate =
      warmup(4000, inverse_sqrt({.lr = 1 / std::sqrt(width * updates), .offset = 4000}));
  for (const int64_t update : {1, 2000, 4000, 16000, 100000}) {
    const auto n = static_cast<double>(update);
    const double paper = std::min(1 / std::sqrt(n), n * std::pow(updates, -1.5)) / std::sqrt(width);
    EXPECT_NEAR(rate(update) / paper, 1, 1e-12) << update;
  }
  EXPECT_EQ(inverse_sqrt({.lr = 1, .offset = 5}).describe(),
            "inverse square root from 1, half of it after 15 updates");
}

TEST(ScheduleTest, WarmupRisesToTheFirstRateAndThenCountsFromThere) {
  const auto then = linear({.lr = 1, .updates = 10});
  const auto rate = warmup(4, then, {.start_lr = 0.2});
  EXPECT_EQ(rate(0), 0.2);
  EXPECT_DOUBLE_EQ(rate(1), 0.4);
  EXPECT_DOUBLE_EQ(rate(3), 0.8);
  for (int64_t update = 0; update < 12; ++update) EXPECT_EQ(rate(4 + update), then(update));
  EXPECT_EQ(warmup(4, then)(0), 0);
}

TEST(ScheduleTest, WarmupOfNoUpdatesIsTheScheduleItself) {
  const auto then = cosine({.lr = 1, .updates = 10});
  const auto rate = warmup(0, then);
  for (int64_t update = 0; update < 12; ++update) EXPECT_EQ(rate(update), then(update));
}

// The step from the last warm update to the first one after it is as small as any step of the ramp.
TEST(ScheduleTest, WarmupEndsWithoutAJump) {
  for (const auto& then : one_of_each()) {
    const auto rate = warmup(100, then);
    EXPECT_EQ(rate(100), then(0)) << rate.describe();
    EXPECT_NEAR(rate(100) - rate(99), rate(50) - rate(49), 1e-15) << rate.describe();
  }
}

TEST(ScheduleTest, WarmupThatDoesNotShiftCutsTheScheduleOff) {
  const auto then = linear({.lr = 1, .updates = 10});
  const auto rate = warmup(4, then, {.shift = false});
  EXPECT_DOUBLE_EQ(rate(2), 0.5);  // towards then(0)
  EXPECT_DOUBLE_EQ(rate(3), 0.75);
  for (int64_t update = 4; update < 12; ++update) EXPECT_EQ(rate(update), then(update));
  EXPECT_EQ(rate.updates(), 10);
}

TEST(ScheduleTest, GivesTheSameInAnyOrderAndFromCopies) {
  for (const auto& then : one_of_each()) {
    const auto rate = warmup(5, then);
    std::vector<double> forward;
    for (int64_t update = 0; update < 50; ++update) forward.push_back(rate(update));
    const Schedule copy = rate;  // NOLINT(performance-unnecessary-copy-initialization)
    for (int64_t update = 49; update >= 0; --update) {
      EXPECT_EQ(copy(update), forward[static_cast<size_t>(update)]) << rate.describe();
      EXPECT_EQ(rate((update * 17) % 50), forward[static_cast<size_t>((update * 17) % 50)]);
    }
  }
}

TEST(ScheduleTest, RisesInTheWarmupAndNeverAfterIt) {
  for (const auto& then : one_of_each()) {
    const auto rate = warmup(5, then);
    for (int64_t update = 0; update < 50; ++update) {
      if (update < 5) {
        EXPECT_LT(rate(update), rate(update + 1)) << rate.describe();
      } else {
        EXPECT_GE(rate(update), rate(update + 1)) << rate.describe();
      }
    }
  }
}

TEST(ScheduleTest, KnowsWhenItSettles) {
  for (const auto& then : one_of_each()) {
    for (const auto& rate : {then, warmup(5, then)}) {
      if (rate.updates() == Schedule::kNeverSettles) {
        EXPECT_LT(rate(10'000), rate(1'000)) << rate.describe();
        continue;
      }
      const double last = rate(rate.updates());
      EXPECT_EQ(rate(rate.updates() + 1000), last) << rate.describe();
      if (rate.updates() > 0) {
        EXPECT_NE(rate(rate.updates() - 1), last) << rate.describe();
      }
    }
  }
}

TEST(ScheduleTest, DescribesItselfForTheLog) {
  EXPECT_EQ(warmup(500, cosine({.lr = 0.4, .updates = 9500})).describe(),
            "warm-up from 0 to 0.4 over 500 updates, then cosine from 0.4 to 0 over 9500 updates");
  EXPECT_EQ(piecewise({.boundaries = {30}, .values = {0.1, 0.01}}).describe(),
            "piecewise 0.1, from update 30 0.01");
  EXPECT_EQ(exponential({.lr = 1, .gamma = 0.5, .every = 7, .staircase = true}).describe(),
            "exponential from 1, times 0.5 at every 7 updates");
}

TEST(ScheduleTest, ScalesRatesWithTheBatch) {
  EXPECT_DOUBLE_EQ(linear_scaled(0.1, 256, 8192), 3.2);
  EXPECT_DOUBLE_EQ(linear_scaled(0.1, 256, 64), 0.025);
  EXPECT_DOUBLE_EQ(sqrt_scaled(0.1, 256, 4096), 0.4);
  EXPECT_DOUBLE_EQ(sqrt_scaled(0.1, 256, 256), 0.1);
}

TEST(ScheduleTest, RefusesAllThatIsNotValidAtOnce) {
  EXPECT_EQ(error_message_of([] { linear({.lr = -1, .end_lr = kNan, .updates = 0}); }),
            "[schedule] a linear schedule cannot be made of these options:\n"
            "  - lr is -1, not a finite number of at least 0\n"
            "  - end_lr is nan, not a finite number of at least 0\n"
            "  - updates is 0, below 1");
  EXPECT_EQ(error_message_of([] { polynomial({.lr = 1, .power = 0, .updates = -3}); }),
            "[schedule] a polynomial schedule cannot be made of these options:\n"
            "  - power is 0, not a finite number above 0\n"
            "  - updates is -3, below 1");
  EXPECT_EQ(error_message_of([] { cosine({.lr = 1, .end_lr = -0.5, .updates = 0}); }),
            "[schedule] a cosine schedule cannot be made of these options:\n"
            "  - end_lr is -0.5, not a finite number of at least 0\n"
            "  - updates is 0, below 1");
  EXPECT_EQ(error_message_of([] {
              piecewise({.boundaries = {0, 20, 20}, .values = {0.1, -2}});
            }),
            "[schedule] a piecewise schedule cannot be made of these options:\n"
            "  - 2 values for 3 boundaries, not 4\n"
            "  - values[1] is -2, not a finite number of at least 0\n"
            "  - boundaries[0] is 0, below 1\n"
            "  - boundaries do not rise: 20 after 20");
  EXPECT_EQ(error_message_of([] { exponential({.lr = 1, .gamma = -1, .every = 0}); }),
            "[schedule] an exponential schedule cannot be made of these options:\n"
            "  - gamma is -1, not a finite number above 0\n"
            "  - every is 0, below 1");
  EXPECT_EQ(error_message_of([] { inverse_sqrt({.lr = -1, .offset = 0}); }),
            "[schedule] an inverse square root cannot be made of these options:\n"
            "  - lr is -1, not a finite number of at least 0\n"
            "  - offset is 0, below 1");
  EXPECT_EQ(error_message_of([] {
              const auto then = linear({.lr = 1, .updates = 10});
              warmup(11, then, {.start_lr = -1, .shift = false});
            }),
            "[schedule] a warm-up cannot be made of these options:\n"
            "  - start_lr is -1, not a finite number of at least 0\n"
            "  - a warm-up of 11 updates leaves nothing of a schedule of 10");
  EXPECT_EQ(error_message_of([] { linear_scaled(0.1, 0, -8); }),
            "[schedule] a linearly scaled rate cannot be made of these options:\n"
            "  - base_batch is 0, below 1\n"
            "  - batch is -8, below 1");
  EXPECT_NE(error_message_of([] { sqrt_scaled(0.1, 0, 8); }).find("base_batch is 0"),
            std::string::npos);
  EXPECT_NE(error_message_of([] { constant(-1); }).find("lr is -1"), std::string::npos);
  EXPECT_NE(error_message_of([] { warmup(-1, constant(1)); }).find("updates is -1"),
            std::string::npos);
  EXPECT_NE(error_message_of([] { Schedule("own", nullptr); }).find("rate is empty"),
            std::string::npos);
  EXPECT_EQ(error_message_of([] { constant(1)(-1); }),
            "[schedule] there is no update -1\n  fix: the first update is 0");
}

}  // namespace
}  // namespace fleet::optim
