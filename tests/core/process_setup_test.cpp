// SPDX-License-Identifier: Apache-2.0
#include "fleet/core/process/process_setup.h"

#include <cstdlib>

#include <gtest/gtest.h>

#include "fleet/core/error.h"
#include "fleet/core/text/format.h"

#include "tests/support/error_of.h"
#include "tests/support/says.h"

namespace fleet {
namespace {

class WaitPolicyTest : public ::testing::Test {
 protected:
  void SetUp() override {
    unsetenv("OMP_WAIT_POLICY");
    unsetenv("GOMP_SPINCOUNT");
  }
  void TearDown() override { SetUp(); }
};

TEST_F(WaitPolicyTest, AProgramHearsOfItWhereCoresAreShared) {
  EXPECT_TRUE(says(wait_policy_advice(8, 8, 6.5), "others use about 6.5 of the 8 cores",
                   "fleetrun, or with GOMP_SPINCOUNT=3000"));
  EXPECT_TRUE(says(wait_policy_advice(2, 2, 40), "others use about 2.0 of the 2 cores"));
}

TEST_F(WaitPolicyTest, NothingIsSaidWhereItWouldNotHelp) {
  EXPECT_EQ(wait_policy_advice(8, 8, 0.2), "") << "the cores are its own";
  EXPECT_EQ(wait_policy_advice(2, 8, 6), "") << "there is room beside the others";
  EXPECT_EQ(wait_policy_advice(1, 8, 40), "") << "one thread waits for no other";
  setenv("OMP_WAIT_POLICY", "active", 1);
  EXPECT_EQ(wait_policy_advice(8, 8, 8), "") << "chosen";
  unsetenv("OMP_WAIT_POLICY");
  setenv("GOMP_SPINCOUNT", "0", 1);
  EXPECT_EQ(wait_policy_advice(8, 8, 8), "") << "chosen";
}

class EnvironmentTest : public ::testing::Test {
 protected:
  static std::string refusal(const char* variable, const char* value) {
    setenv(variable, value, 1);
    auto text = testing::error_message_of<UsageError>([] { set_up_process(1); });
    unsetenv(variable);
    return text;
  }
};

TEST_F(EnvironmentTest, AVariableThatSaysNothingIsRefused) {
  EXPECT_TRUE(says(refusal("FLEET_KEEP_PAGES", "maybe"),
                   "[environment] FLEET_KEEP_PAGES='maybe' is neither 0 nor 1"));
  for (const char* value : {"many", "0", "-2", "4x", ""}) {
    EXPECT_TRUE(says(refusal("OMP_NUM_THREADS", value),
                     format("[environment] OMP_NUM_THREADS='{}' is not a number of threads", value),
                     "fix: give a whole number above 0"));
  }
}

TEST_F(EnvironmentTest, TheFirstOfOpenMpsListIsTaken) {
  setenv("OMP_NUM_THREADS", "1,2", 1);
  EXPECT_TRUE(says(set_up_process(1), "1 thread per rank (OMP_NUM_THREADS)"));
  unsetenv("OMP_NUM_THREADS");
}

}  // namespace
}  // namespace fleet
