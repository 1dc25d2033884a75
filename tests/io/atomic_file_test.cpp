// SPDX-License-Identifier: Apache-2.0
#include "fleet/io/atomic_file.h"

#include <gtest/gtest.h>

#include "tests/data/temporary_folder.h"
#include "tests/support/error_of.h"
#include "tests/support/launched.h"
#include "tests/support/says.h"

namespace fleet {
namespace {

namespace fs = std::filesystem;
using launch::contents;
using testing::error_message_of;

int files_in(const fs::path& folder) {
  int count = 0;
  for (const auto& item : fs::directory_iterator(folder)) count += item.exists() ? 1 : 0;
  return count;
}

TEST(AtomicFileTest, IsHiddenUntilItIsComplete) {
  const TemporaryFolder folder;
  const auto path = folder.write("a.txt", "old");
  {
    AtomicFile file(path, "test");
    file.write("new", 3);
    for (const auto& item : fs::directory_iterator(folder.path())) {
      const auto name = item.path().filename().string();
      EXPECT_TRUE(name == "a.txt" || name.starts_with('.')) << name;
    }
    EXPECT_EQ(contents(path), "old");
    file.commit();
  }
  EXPECT_EQ(contents(path), "new");
  { AtomicFile dropped(path, "test"); }
  EXPECT_EQ(contents(path), "new");
  EXPECT_EQ(files_in(folder.path()), 1);
}

TEST(AtomicFileTest, LinkStaysAndItsTargetIsReplaced) {
  const TemporaryFolder folder;
  const auto target = folder.write("target", "old");
  fs::create_symlink("target", folder.path() / "link");
  fs::create_symlink("missing", folder.path() / "dangling");
  write_file_atomically(folder.path() / "link", "new", "test");
  write_file_atomically(folder.path() / "dangling", "there", "test");
  EXPECT_TRUE(fs::is_symlink(folder.path() / "link"));
  EXPECT_EQ(contents(target), "new");
  EXPECT_EQ(contents(folder.path() / "missing"), "there");
}

TEST(AtomicFileTest, DeviceStaysADevice) {
  write_file_atomically("/dev/null", "text", "test");
  EXPECT_TRUE(fs::is_character_file("/dev/null"));
}

TEST(AtomicFileTest, FolderIsNoFile) {
  const TemporaryFolder folder;
  EXPECT_TRUE(says(error_message_of([&] { write_file_atomically(folder.path(), "text", "test"); }),
                   "cannot write " + folder.path().string(), "Is a directory"));
}

}  // namespace
}  // namespace fleet
