// SPDX-License-Identifier: Apache-2.0
// The ranks of one node.

#include "tools/fleetrun/process/worker_group.h"

#include <gtest/gtest.h>

#include "tests/data/temporary_folder.h"
#include "tests/support/launched.h"

namespace fleet::launch {
namespace {

TEST(WorkerGroupTest, HasEndedOnlyOnceEveryExitStatusWasRead) {
  const TemporaryFolder folder;
  WorkerLogs logs(folder.path(), 0, 2, {});
  Watchdog watchdog;
  WorkerGroup workers(find_program("sh", {"-c", "exit $CODE"}), {{{"CODE", "0"}}, {{"CODE", "5"}}},
                      logs, watchdog);
  ASSERT_TRUE(eventually([&] { return workers.none_runs(); }));
  EXPECT_FALSE(workers.all_ended());
  EXPECT_EQ(workers.new_failures(), std::vector<size_t>{1});
  EXPECT_TRUE(workers.all_ended());
  EXPECT_TRUE(workers.new_failures().empty());
}

}  // namespace
}  // namespace fleet::launch
