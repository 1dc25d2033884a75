// SPDX-License-Identifier: Apache-2.0
#include "fleet/snapshot/snapshot_records.h"

#include <gtest/gtest.h>

#include "fleet/core/text/format.h"
#include "fleet/core/xx_hash64.h"
#include "fleet/snapshot/snapshot_value.h"

#include "tests/data/temporary_folder.h"
#include "tests/support/error_of.h"
#include "tests/support/says.h"

namespace fleet {
namespace {

using testing::error_message_of;

/// What is said to a snapshot of one rank with this training.json, its checksum right.
std::string refusal(const std::string& text) {
  const TemporaryFolder folder;
  std::filesystem::create_directory(folder.path() / "step-00000007");
  std::string list;
  for (const auto* name :
       {kTrainingFile, kModelFile, kOptimizerFile, "rank-0.json", "rank-0.safetensors"}) {
    const bool is_it = name == std::string_view(kTrainingFile);
    const auto file = folder.write(format("step-00000007/{}", name), is_it ? text : "");
    list += format("{}  {}\n", XxHash64::text(XxHash64::of_file(file)), name);
  }
  folder.write("step-00000007/checksums.xxh64", list);
  return error_message_of([&] { read_training_record(SnapshotReader(folder.path(), 7)); });
}

TEST(SnapshotRecordsTest, TakeASnapshotThatHasItsFiles) {
  EXPECT_EQ(refusal(R"({"format": 1, "step": 7, "world_size": 1})"), "");
}

// Otherwise a list of all their file names would fill the memory.
TEST(SnapshotRecordsTest, RefuseMoreRanksThanThereAreFiles) {
  EXPECT_TRUE(says(refusal(R"({"format": 1, "step": 7, "world_size": 4611686018427387904})"),
                   "training.json", "4611686018427387904 ranks", "5 files"));
  EXPECT_TRUE(says(refusal(R"({"format": 1, "step": 7, "world_size": 2})"),
                   "the snapshot has no rank-1.safetensors"));
}

TEST(SnapshotRecordsTest, RefuseAFormatThatIsNoNumber) {
  for (const auto* text : {R"({"format": "1"})", R"({"format": [1]})", R"({"format": 1e300})",
                           R"({"format": 4294967297})", R"({})", "[", ""}) {
    EXPECT_TRUE(says(refusal(text), "training.json: format", "is not known here")) << text;
  }
}

TEST(SnapshotValueTest, DoesNotPrintWhatIsNestedWithoutEnd) {
  int64_t best = 0;
  const std::string deep = std::string(1'000'000, '[') + std::string(1'000'000, ']');
  EXPECT_TRUE(says(error_message_of([&] {
                     read_values({{"best", &best}}, "{\"best\": " + deep + "}", "file", nullptr);
                   }),
                   "best is a list there, and a whole number is expected here"));
}

}  // namespace
}  // namespace fleet
