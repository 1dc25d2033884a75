// SPDX-License-Identifier: Apache-2.0
#include "fleet/core/process/cpu_limit.h"

#include <gtest/gtest.h>

#include "fleet/core/process/process_setup.h"

#include "tests/support/fake_root.h"

namespace fleet {
namespace {

class CpuLimitTest : public ::testing::Test {
 protected:
  FakeRoot root_;
};

TEST_F(CpuLimitTest, IsNothingWhereNoGroupHasAQuota) {
  EXPECT_FALSE(cpu_limit(root_.path()));
  root_.write("proc/self/cgroup", "0::/user.slice/me\n");
  root_.write("sys/fs/cgroup/user.slice/me/cpu.max", "max 100000\n");
  EXPECT_FALSE(cpu_limit(root_.path()));
}

TEST_F(CpuLimitTest, IsTheSmallestQuotaOnTheWayToTheRoot) {
  root_.write("proc/self/cgroup", "0::/docker/abc\n");
  root_.write("sys/fs/cgroup/docker/abc/cpu.max", "400000 100000\n");
  root_.write("sys/fs/cgroup/docker/cpu.max", "75000 50000\n");
  const auto limit = cpu_limit(root_.path());
  ASSERT_TRUE(limit);
  EXPECT_EQ(limit->cores, 1.5);
  EXPECT_EQ(limit->source, "control group /docker");
}

TEST_F(CpuLimitTest, ReadsVersionOne) {
  root_.write("proc/self/cgroup", "12:cpu,cpuacct:/job\n9:memory:/other\n");
  root_.write("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n");
  root_.write("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
  root_.write("sys/fs/cgroup/cpu/job/cpu.cfs_quota_us", "300000\n");
  root_.write("sys/fs/cgroup/cpu/job/cpu.cfs_period_us", "100000\n");
  const auto limit = cpu_limit(root_.path());
  ASSERT_TRUE(limit);
  EXPECT_EQ(limit->cores, 3);
}

// A container that may use half a core of 64 must not start 64 threads.
TEST_F(CpuLimitTest, AvailableCoresAreNoMoreThanTheQuota) {
  const int affinity = available_cores(root_.path());
  root_.write("proc/self/cgroup", "0::/a\n");
  root_.write("sys/fs/cgroup/a/cpu.max", "50000 100000\n");
  EXPECT_EQ(available_cores(root_.path()), 1);
  root_.write("sys/fs/cgroup/a/cpu.max", "999900000 100000\n");
  EXPECT_EQ(available_cores(root_.path()), affinity);
}

}  // namespace
}  // namespace fleet
