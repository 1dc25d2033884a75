#include "fleet/core/process_setup.h"

#include <cstdlib>

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace fleet
