// The ranks of one node.

#include "tools/fleetrun/crew.h"

#include <chrono>

#include <gtest/gtest.h>

#include "tests/data/temporary_folder.h"
#include "tests/support/launched.h"

namespace fleet::launch {
namespace {

using namespace std::chrono_literals;

TEST(CrewTest, NobodyHasEndedBeforeSomebodyLookedHow) {
  const TemporaryFolder folder;
  std::vector<WorkerLog> logs;
  for (int rank = 0; rank < 2; ++rank) logs.emplace_back(folder.path(), rank);
  Watchdog watchdog;
  Crew crew(find_program("sh", {"-c", "exit $CODE"}), {{{"CODE", "0"}}, {{"CODE", "5"}}}, logs,
            watchdog);
  ASSERT_TRUE(eventually([&] { return crew.none_runs(); }, 10s));
  EXPECT_FALSE(crew.all_ended());
  EXPECT_EQ(crew.new_failures(), std::vector<size_t>{1});
  EXPECT_TRUE(crew.all_ended());
  EXPECT_TRUE(crew.new_failures().empty());
}

}  // namespace
}  // namespace fleet::launch
