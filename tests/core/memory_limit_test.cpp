// SPDX-License-Identifier: Apache-2.0
#include "fleet/core/process/memory_limit.h"

#include <gtest/gtest.h>

#include "tests/support/fake_root.h"

namespace fleet {
namespace {

constexpr int64_t kGiB = int64_t{1} << 30;

/// Of a machine with 64 GiB.
class MemoryLimitTest : public ::testing::Test {
 protected:
  MemoryLimitTest() {
    write("proc/meminfo", "MemTotal:       67108864 kB\nMemFree:        1024 kB\n");
  }

  void write(const std::string& path, const std::string& text) const { root_.write(path, text); }
  MemoryLimit limit() const { return memory_limit(root_.path()); }

  FakeRoot root_;
};

TEST_F(MemoryLimitTest, IsTheMachinesWhereNoGroupHasOne) {
  EXPECT_EQ(limit().bytes, 64 * kGiB);
  EXPECT_EQ(limit().source, "this machine");
  write("proc/self/cgroup", "0::/user.slice/me\n");
  write("sys/fs/cgroup/user.slice/me/memory.max", "max\n");
  EXPECT_EQ(limit().bytes, 64 * kGiB);
}

TEST_F(MemoryLimitTest, IsThatOfTheProcessesOwnGroupNotOfTheRoot) {
  write("proc/self/cgroup", "0::/system.slice/job.scope\n");
  write("sys/fs/cgroup/system.slice/job.scope/memory.max", "8589934592\n");
  write("sys/fs/cgroup/system.slice/other.scope/memory.max", "1\n");
  EXPECT_EQ(limit().bytes, 8 * kGiB);
  EXPECT_EQ(limit().source, "control group /system.slice/job.scope");
}

TEST_F(MemoryLimitTest, IsTheSmallestOnTheWayToTheRoot) {
  write("proc/self/cgroup", "0::/slurm/job_7/step_0/task_1\n");
  write("sys/fs/cgroup/slurm/job_7/step_0/task_1/memory.max", "17179869184\n");
  write("sys/fs/cgroup/slurm/job_7/step_0/memory.max", "max\n");
  write("sys/fs/cgroup/slurm/job_7/memory.max", "4294967296\n");
  EXPECT_EQ(limit().bytes, 4 * kGiB);
  EXPECT_EQ(limit().source, "control group /slurm/job_7");
  write("sys/fs/cgroup/memory.max", "2147483648\n");
  EXPECT_EQ(limit().bytes, 2 * kGiB);
}

TEST_F(MemoryLimitTest, HeedsWhereASystemBeginsToTakeMemoryBack) {
  write("proc/self/cgroup", "0::/a\n");
  write("sys/fs/cgroup/a/memory.max", "8589934592\n");
  write("sys/fs/cgroup/a/memory.high", "4294967296\n");
  EXPECT_EQ(limit().bytes, 4 * kGiB);
}

TEST_F(MemoryLimitTest, ReadsVersionOneNested) {
  write("proc/self/cgroup",
        "12:cpu,cpuacct:/x\n9:hugetlb,memory:/slurm/uid_1/job_3\n1:name=systemd:/y\n");
  write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  write("sys/fs/cgroup/memory/slurm/uid_1/memory.limit_in_bytes", "12884901888\n");
  write("sys/fs/cgroup/memory/slurm/uid_1/job_3/memory.limit_in_bytes", "9223372036854771712\n");
  write("sys/fs/cgroup/memory/x/memory.limit_in_bytes", "1\n");  // of another controller
  EXPECT_EQ(limit().bytes, 12 * kGiB);
  EXPECT_EQ(limit().source, "control group /slurm/uid_1");
}

TEST_F(MemoryLimitTest, FindsHierarchiesWhereTheyAreMounted) {
  write("proc/self/cgroup", "7:memory:/job\n0::/job\n");
  write("proc/self/mountinfo",
        "30 23 0:26 / /run/groups/memory rw,nosuid shared:9 - cgroup cgroup rw,memory\n"
        "31 23 0:27 / /run/groups/unified rw,nosuid shared:10 - cgroup2 cgroup2 rw,nsdelegate\n"
        "32 23 0:28 / /run/groups/cpu rw - cgroup cgroup rw,cpu\n");
  write("run/groups/memory/job/memory.limit_in_bytes", "3221225472\n");
  write("run/groups/unified/job/cgroup.procs", "");
  EXPECT_EQ(limit().bytes, 3 * kGiB);
}

// A container that shows only its own group, as the root of what is mounted: the path of the
// process is that of the host.
TEST_F(MemoryLimitTest, OfAContainerIsThatOfWhatIsMounted) {
  write("proc/self/cgroup", "9:memory:/docker/abc/inner\n");
  write("proc/self/mountinfo",
        "30 23 0:26 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n");
  write("sys/fs/cgroup/memory/memory.limit_in_bytes", "6442450944\n");
  write("sys/fs/cgroup/memory/inner/memory.limit_in_bytes", "5368709120\n");
  EXPECT_EQ(limit().bytes, 5 * kGiB);
  write("proc/self/cgroup", "0::/../../elsewhere\n");
  write("proc/self/mountinfo", "30 23 0:26 / /sys/fs/cgroup ro - cgroup2 cgroup rw\n");
  write("sys/fs/cgroup/memory.max", "7516192768\n");
  EXPECT_EQ(limit().bytes, 7 * kGiB);
}

TEST_F(MemoryLimitTest, OfThisProcessIsKnown) { EXPECT_GT(memory_limit().bytes, 64 << 20); }

}  // namespace
}  // namespace fleet
