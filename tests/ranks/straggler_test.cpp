// SPDX-License-Identifier: Apache-2.0
// A rank that slows the others down is named.

#include <gtest/gtest.h>

#include "fleet/core/text/format.h"

#include "tests/ranks/recovery.h"
#include "tests/support/patience.h"
#include "tests/support/says.h"

namespace fleet::launch {
namespace {

const Words kOneThread = with({"OMP_NUM_THREADS=1"});

std::string output_of(const Words& arguments) {
  auto all = arguments;
  // More than others may take of a core.
  const int update_ms = static_cast<int>(30 * patience());
  all.insert(all.end(), {"--slow_rank=1", "--slow_until=20", format("--update_ms={}", update_ms)});
  Launched run(recovery_job(2, "", all), kOneThread);
  EXPECT_EQ(run.wait(std::chrono::seconds(60)), 0) << run.output();
  EXPECT_EQ(run.output().find("rank 0 ("), std::string::npos) << run.output();
  const auto pid = after(run.log(1), "pid");
  const auto text = run.output();
  const auto named = text.find(format(", pid {}) slows the others down", pid));
  if (named == text.npos) return "";
  EXPECT_EQ(text.find("slows the others down", named + 40), text.npos) << "once\n" << text;
  return text;
}

TEST(StragglerTest, IsNamedOnceAndAgainWhenItContinues) {
  const auto text = output_of({});
  EXPECT_TRUE(says(text, "[straggler] warning: rank 1 (",
                   "slows the others down: its own compute for an", "in the last 5 updates\n",
                   ") is as fast as the others again: "));
}

TEST(StragglerTest, IsNamedAtAnAverageOfLocalSgd) {
  const auto text = output_of({"--localsgd", "--localsgd_configs.k_steps=4"});
  EXPECT_TRUE(says(text, "[straggler] warning: rank 1 (", "in the last 8 updates\n"));
}

TEST(StragglerTest, IsNotNamedWithFactorZero) {
  EXPECT_EQ(output_of({"--straggler_factor=0"}), "");
}

}  // namespace
}  // namespace fleet::launch
