#include "fleet/io/snapshot_folder.h"

#include <gtest/gtest.h>

#include "fleet/io/new_file.h"

#include "tests/data/temporary_folder.h"
#include "tests/support/error_of.h"
#include "tests/support/says.h"

namespace fleet {
namespace {

namespace fs = std::filesystem;
using testing::error_of;

void write(const fs::path& dir, int64_t step, const std::string& text = "text") {
  NewSnapshot snapshot(dir, step);
  FileHashes hashes;
  for (const auto* name : {"a.json", "b.json"}) {
    hashes[name] = write_new_file(snapshot.hidden() / name, text + name, "snapshot");
  }
  snapshot.publish(hashes);
}

std::vector<std::string> names_in(const fs::path& dir) {
  std::vector<std::string> names;
  for (const auto& item : fs::directory_iterator(dir)) names.push_back(item.path().filename());
  std::sort(names.begin(), names.end());
  return names;
}

using Names = std::vector<std::string>;
using Steps = std::vector<int64_t>;

TEST(SnapshotFolderTest, IsSeenWhenItIsWhole) {
  const TemporaryFolder folder;
  const auto dir = folder.path() / "deep" / "down";
  EXPECT_EQ(snapshots_in(dir), Steps{});
  {
    NewSnapshot snapshot(dir, 12);
    const auto hash = write_new_file(snapshot.hidden() / "a.json", "text", "snapshot");
    EXPECT_EQ(snapshots_in(dir), Steps{});
    snapshot.publish({{"a.json", hash}});
    EXPECT_EQ(snapshots_in(dir), Steps{12});
  }
  EXPECT_EQ(names_in(dir), (Names{".lock", "step-00000012"}));
  EXPECT_EQ(names_in(dir / "step-00000012"), (Names{"a.json", "checksums.xxh64"}));
  EXPECT_EQ(SnapshotReader(dir, 12).text_of("a.json"), "text");
}

TEST(SnapshotFolderTest, OneThatIsGivenUpLeavesNothing) {
  const TemporaryFolder folder;
  { NewSnapshot snapshot(folder.path(), 1); }
  EXPECT_EQ(names_in(folder.path()), Names{".lock"});
}

TEST(SnapshotFolderTest, TheNextOneRemovesWhatTheDeadLeft) {
  const TemporaryFolder folder;
  fs::create_directories(folder.path() / ".step-00000007" / "x");
  write(folder.path(), 8);
  EXPECT_EQ(names_in(folder.path()), (Names{".lock", "step-00000008"}));
}

TEST(SnapshotFolderTest, KeepsTheNewest) {
  const TemporaryFolder folder;
  for (const int64_t step : {3, 100'000'000, 20, 10}) write(folder.path(), step);
  fs::create_directory(folder.path() / "step-5");  // not ours
  fs::create_directory(folder.path() / "step-xyz");
  EXPECT_EQ(snapshots_in(folder.path()), (Steps{100'000'000, 20, 10, 3}));
  remove_older_snapshots(folder.path(), 20, 2);
  EXPECT_EQ(snapshots_in(folder.path()), (Steps{100'000'000, 20, 10}));
  EXPECT_TRUE(fs::exists(folder.path() / "step-5"));
}

TEST(SnapshotFolderTest, TakesThePlaceOfOneOfTheSameStep) {
  const TemporaryFolder folder;
  write(folder.path(), 4, "old");
  write(folder.path(), 4, "new");
  EXPECT_EQ(SnapshotReader(folder.path(), 4).text_of("a.json"), "newa.json");
  EXPECT_EQ(names_in(folder.path()), (Names{".lock", "step-00000004"}));
}

TEST(SnapshotFolderTest, TwoRunsDoNotShareAFolder) {
  const TemporaryFolder folder;
  const NewSnapshot first(folder.path(), 1);
  EXPECT_TRUE(says(error_of([&] { NewSnapshot second(folder.path(), 2); }),
                   "another run is writing", folder.path().string(), "--snapshot_dir"));
}

TEST(SnapshotFolderTest, NamesAFileThatDidNotArrive) {
  const TemporaryFolder folder;
  NewSnapshot snapshot(folder.path(), 1);
  EXPECT_TRUE(says(error_of([&] {
                     snapshot.publish({{"rank-1.json", 5}});
                   }),
                   "rank-1.json", "file system that they share"));
}

TEST(SnapshotFolderTest, NamesTheFileThatIsDamaged) {
  const TemporaryFolder folder;
  write(folder.path(), 1);
  const auto own = snapshot_folder(folder.path(), 1);
  fs::resize_file(own / "b.json", 3);
  const SnapshotReader reader(folder.path(), 1);
  EXPECT_EQ(reader.text_of("a.json"), "texta.json");
  EXPECT_TRUE(says(error_of([&] { reader.checked("b.json"); }), (own / "b.json").string(),
                   "damaged", "checksums.xxh64"));
  EXPECT_TRUE(says(error_of([&] { reader.checked("c.json"); }), "does not list c.json"));
  fs::remove(own / "b.json");
  EXPECT_TRUE(says(error_of([&] { reader.checked("b.json"); }), "b.json: it is missing"));
  fs::resize_file(own / "checksums.xxh64", 30);
  EXPECT_TRUE(says(error_of([&] { SnapshotReader(folder.path(), 1); }),
                   "checksums.xxh64: line 2 is damaged"));
  fs::remove(own / "checksums.xxh64");
  EXPECT_TRUE(
      says(error_of([&] { SnapshotReader(folder.path(), 1); }), "checksums.xxh64: it is missing"));
}

TEST(SnapshotFolderTest, SaysWhyAFolderCannotBeMade) {
  const TemporaryFolder folder;
  folder.write("file", "x");
  EXPECT_TRUE(says(error_of([&] { NewSnapshot snapshot(folder.path() / "file", 1); }), "cannot",
                   (folder.path() / "file").string()));
}

}  // namespace
}  // namespace fleet
