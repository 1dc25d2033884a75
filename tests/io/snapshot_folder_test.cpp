// SPDX-License-Identifier: Apache-2.0
#include "fleet/snapshot/snapshot_folder.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>

#include <gtest/gtest.h>

#include "fleet/io/atomic_file.h"

#include "tests/data/temporary_folder.h"
#include "tests/support/error_of.h"
#include "tests/support/says.h"

namespace fleet {
namespace {

namespace fs = std::filesystem;
using testing::error_message_of;

void write(const fs::path& dir, int64_t step, const std::string& text = "text",
           const PublishOptions& options = {}) {
  fs::create_directories(dir);
  FolderLock lock(dir);
  NewSnapshot snapshot(lock, step);
  FileHashes hashes;
  for (const auto* name : {"a.json", "b.json"}) {
    hashes[name] = write_file_atomically(snapshot.hidden() / name, text + name, "snapshot");
  }
  snapshot.publish(hashes, options);
}

// Without the lock's.
std::vector<std::string> names_in(const fs::path& dir) {
  std::vector<std::string> names;
  for (const auto& item : fs::directory_iterator(dir)) {
    const auto name = item.path().filename().string();
    if (!name.starts_with(".lock.")) names.push_back(name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

using Names = std::vector<std::string>;
using Steps = std::vector<int64_t>;

TEST(SnapshotFolderTest, IsSeenWhenItIsComplete) {
  const TemporaryFolder folder;
  const auto dir = folder.path() / "deep";
  EXPECT_EQ(snapshots_in(dir), Steps{});
  fs::create_directory(dir);
  {
    FolderLock lock(dir);
    NewSnapshot snapshot(lock, 12);
    const auto hash = write_file_atomically(snapshot.hidden() / "a.json", "text", "snapshot");
    EXPECT_EQ(snapshots_in(dir), Steps{});
    snapshot.publish({{"a.json", hash}});
    EXPECT_EQ(snapshots_in(dir), Steps{12});
  }
  EXPECT_EQ(names_in(dir), Names{"step-00000012"});
  EXPECT_EQ(names_in(dir / "step-00000012"), (Names{"a.json", "checksums.xxh64"}));
  EXPECT_EQ(SnapshotReader(dir, 12).text_of("a.json"), "text");
}

TEST(SnapshotFolderTest, OneThatIsDroppedLeavesNothing) {
  const TemporaryFolder folder;
  FolderLock lock(folder.path());
  { NewSnapshot snapshot(lock, 1); }
  EXPECT_EQ(names_in(folder.path()), Names{});
}

TEST(SnapshotFolderTest, TheNextOneRemovesWhatTheDeadLeft) {
  const TemporaryFolder folder;
  fs::create_directories(folder.path() / ".step-00000007" / "x");
  write(folder.path(), 8);
  EXPECT_EQ(names_in(folder.path()), Names{"step-00000008"});
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
  EXPECT_EQ(names_in(folder.path()), Names{"step-00000004"});
}

// As NFS and old kernels have it.
PublishOptions without_exchange(int error = EINVAL) {
  return {.exchange = [error](const fs::path&, const fs::path&) { return error; }};
}

TEST(SnapshotFolderTest, ReplacesAStepWhereFoldersCannotBeExchanged) {
  for (const int error : {EINVAL, ENOSYS, EOPNOTSUPP}) {
    const TemporaryFolder folder;
    write(folder.path(), 4, "old");
    write(folder.path(), 4, "new", without_exchange(error));
    EXPECT_EQ(SnapshotReader(folder.path(), 4).text_of("a.json"), "newa.json");
    EXPECT_EQ(names_in(folder.path()), Names{"step-00000004"});
  }
}

TEST(SnapshotFolderTest, OtherFailuresOfAnExchangeAreErrors) {
  const TemporaryFolder folder;
  write(folder.path(), 4, "old");
  EXPECT_TRUE(says(error_message_of([&] { write(folder.path(), 4, "new", without_exchange(EIO)); }),
                   "cannot rename to", "step-00000004", "Input/output error"));
  EXPECT_EQ(SnapshotReader(folder.path(), 4).text_of("a.json"), "olda.json");
}

TEST(SnapshotFolderTest, OldOneIsRestoredWhenTheNewOneCannotBeRenamed) {
  const TemporaryFolder folder;
  write(folder.path(), 4, "old");
  auto options = without_exchange();
  options.between_renames = [&] {
    for (const auto& name : names_in(folder.path())) {
      if (name.starts_with(".step-")) fs::remove_all(folder.path() / name);
    }
  };
  EXPECT_TRUE(
      says(error_message_of([&] { write(folder.path(), 4, "new", options); }), "cannot rename to"));
  EXPECT_EQ(SnapshotReader(folder.path(), 4).text_of("a.json"), "olda.json");
}

// Leaves the folder as a process does that is killed while a snapshot is under no name.
void die_between_renames(const fs::path& dir) {
  const pid_t pid = ::fork();
  if (pid == 0) {
    auto options = without_exchange();
    options.between_renames = [] { ::raise(SIGKILL); };
    write(dir, 4, "new", options);
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(pid, &status, 0);
  ASSERT_TRUE(WIFSIGNALED(status));
  ASSERT_EQ(snapshots_in(dir), Steps{});
  ASSERT_TRUE(has_interrupted(dir));
}

TEST(SnapshotFolderTest, DeathBetweenTwoRenamesLosesNothing) {
  const TemporaryFolder folder;
  write(folder.path(), 4, "old");
  die_between_renames(folder.path());
  const FolderLock lock(folder.path());
  finish_interrupted(folder.path());
  EXPECT_EQ(SnapshotReader(folder.path(), 4).text_of("a.json"), "newa.json");
  EXPECT_EQ(names_in(folder.path()), Names{"step-00000004"});
  EXPECT_FALSE(has_interrupted(folder.path()));
}

TEST(SnapshotFolderTest, NextSnapshotCompletesWhatDiedBetweenTwoRenames) {
  const TemporaryFolder folder;
  write(folder.path(), 4, "old");
  die_between_renames(folder.path());
  write(folder.path(), 5);
  EXPECT_EQ(snapshots_in(folder.path()), (Steps{5, 4}));
  EXPECT_EQ(SnapshotReader(folder.path(), 4).text_of("b.json"), "newb.json");
}

TEST(SnapshotFolderTest, WithoutTheNewOneTheOldOneIsRestored) {
  const TemporaryFolder folder;
  write(folder.path(), 4, "old");
  fs::rename(folder.path() / "step-00000004", folder.path() / ".replaced-step-00000004");
  fs::create_directory(folder.path() / ".step-00000004.1");  // not complete
  write(folder.path(), 5);
  EXPECT_EQ(SnapshotReader(folder.path(), 4).text_of("a.json"), "olda.json");
}

// It was stopped for so long that another machine found it dead.
TEST(SnapshotFolderTest, WriterThatLostTheLockDoesNotPublish) {
  const TemporaryFolder folder;
  FolderLock lock(folder.path());
  NewSnapshot snapshot(lock, 1);
  auto other = LockRecord::own();
  other.job = "another";
  make_lock_file(lock_path(folder.path(), 2), other);
  EXPECT_TRUE(
      says(error_message_of([&] { snapshot.publish({}); }), "was taken over by another run"));
  EXPECT_EQ(snapshots_in(folder.path()), Steps{});
}

TEST(SnapshotFolderTest, NamesAFileThatDidNotArrive) {
  const TemporaryFolder folder;
  FolderLock lock(folder.path());
  NewSnapshot snapshot(lock, 1);
  EXPECT_TRUE(says(error_message_of([&] {
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
  EXPECT_TRUE(says(error_message_of([&] { reader.checked("b.json"); }), (own / "b.json").string(),
                   "damaged", "checksums.xxh64"));
  EXPECT_TRUE(says(error_message_of([&] { reader.checked("c.json"); }), "does not list c.json"));
  fs::remove(own / "b.json");
  EXPECT_TRUE(says(error_message_of([&] { reader.checked("b.json"); }), "b.json: it is missing"));
  fs::resize_file(own / "checksums.xxh64", 30);
  EXPECT_TRUE(says(error_message_of([&] { SnapshotReader(folder.path(), 1); }),
                   "checksums.xxh64: line 2 is damaged"));
  fs::remove(own / "checksums.xxh64");
  EXPECT_TRUE(says(error_message_of([&] { SnapshotReader(folder.path(), 1); }),
                   "checksums.xxh64: it is missing"));
}

TEST(SnapshotFolderTest, RefusesAListWithAFileTwiceOrElsewhere) {
  const TemporaryFolder folder;
  write(folder.path(), 1);
  const auto list = snapshot_folder(folder.path(), 1) / "checksums.xxh64";
  const auto refusal = [&](const std::string& text) {
    std::ofstream(list) << text;
    return error_message_of([&] { SnapshotReader(folder.path(), 1); });
  };
  const std::string hash = "44bc2cf5ad770999  ";
  EXPECT_TRUE(says(refusal(hash + "a.json\n" + hash + "a.json\n"), "line 2 is damaged"));
  EXPECT_TRUE(says(refusal(hash + "../a.json\n"), "line 1 is damaged"));
  EXPECT_TRUE(says(refusal(hash + "..\n"), "line 1 is damaged"));
}

TEST(SnapshotFolderTest, SaysWhyAFolderCannotBeMade) {
  const TemporaryFolder folder;
  const auto dir = folder.path() / "dir";
  fs::create_directory(dir);
  FolderLock lock(dir);
  fs::remove_all(dir);
  folder.write("dir", "x");
  EXPECT_TRUE(
      says(error_message_of([&] { NewSnapshot snapshot(lock, 1); }), "cannot", dir.string()));
}

}  // namespace
}  // namespace fleet
