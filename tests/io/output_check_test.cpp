// SPDX-License-Identifier: Apache-2.0
#include "fleet/io/output_check.h"

#include <unistd.h>

#include <gtest/gtest.h>

#include "tests/data/temporary_folder.h"
#include "tests/support/error_of.h"
#include "tests/support/says.h"

namespace fleet {
namespace {

namespace fs = std::filesystem;
using testing::error_message_of;

class OutputCheckTest : public ::testing::Test {
 protected:
  static OutputPlace at(const fs::path& path) { return {path, "--out", "test"}; }
  fs::path path(const char* name) const { return folder_.path() / name; }
  /// What is said when `output` would overwrite the file "in".
  std::string overwriting(const fs::path& output) const {
    return error_message_of<UsageError>([&] {
      check_overwrites_nothing({at(output)}, {{path("in"), "the text"}});
    });
  }

  TemporaryFolder folder_;
};

TEST_F(OutputCheckTest, MakesTheFolderAndLeavesNothingInIt) {
  check_output_folder(at(path("a/b")));
  EXPECT_TRUE(fs::is_empty(path("a/b")));
  check_output_file(at(path("c/d/file")));
  EXPECT_TRUE(fs::is_empty(path("c/d")));
  check_output_file(at("/dev/null"));
}

TEST_F(OutputCheckTest, NamesTheFlagAndTheReason) {
  folder_.write("file", "x");
  EXPECT_TRUE(says(error_message_of<UsageError>([&] { check_output_folder(at(path("file"))); }),
                   "[test] --out: cannot write " + path("file").string(), "Not a directory",
                   "give a --out"));
  EXPECT_TRUE(
      says(error_message_of<UsageError>([&] { check_output_folder(at(path("file/below"))); }),
           "Not a directory"));
  EXPECT_TRUE(says(error_message_of<UsageError>([&] { check_output_file(at(path("file/below"))); }),
                   "Not a directory"));
  EXPECT_TRUE(says(error_message_of<UsageError>([&] { check_output_file(at(folder_.path())); }),
                   "Is a directory"));
  EXPECT_TRUE(says(error_message_of<UsageError>([&] { check_output_file(at("/proc/fleet/file")); }),
                   "--out: cannot write /proc/fleet"));
}

// A file is written beside its place, by a longer name.
TEST_F(OutputCheckTest, NameThatIsTooLongForTheFileBesideItIsRefused) {
  const auto name = folder_.path() / std::string(250, 'n');
  EXPECT_TRUE(says(error_message_of<UsageError>([&] { check_output_file(at(name)); }),
                   "--out: cannot write " + name.string(), "File name too long"));
  const auto shorter = folder_.path() / std::string(200, 'n');
  check_output_file(at(shorter));
  EXPECT_TRUE(fs::is_empty(folder_.path()));
}

TEST_F(OutputCheckTest, SaysHowMuchRoomIsNeededAndHowMuchThereIs) {
  check_room(at(folder_.path()), 1, "a snapshot");
  EXPECT_TRUE(says(error_message_of<UsageError>(
                       [&] { check_room(at(folder_.path()), int64_t{1} << 60, "a snapshot"); }),
                   "--out: a snapshot takes 1048576.00 TiB, and the disk of " +
                       folder_.path().string() + " has ",
                   " left", "make room there"));
  EXPECT_TRUE(says(
      error_message_of<UsageError>([&] { check_output_file(at(path("file")), int64_t{1} << 60); }),
      "--out: file takes "));
}

TEST_F(OutputCheckTest, OutputsOnOneDiskNeedRoomForAll) {
  const auto space = fs::space(folder_.path());  // root has the reserve too
  const auto half = static_cast<int64_t>(::geteuid() == 0 ? space.free : space.available) * 6 / 10;
  fs::create_directory(path("snapshots"));
  const OutputPlace save{folder_.path(), "--save", "weights"};
  const OutputPlace snapshots{path("snapshots"), "--snapshot_dir", "snapshot"};
  check_room(save, half, "net.safetensors");
  check_room(save, half, "net.safetensors");  // the same file
  EXPECT_TRUE(says(error_message_of<UsageError>([&] { check_room(snapshots, half, "a snapshot"); }),
                   "--snapshot_dir: a snapshot takes ", ", --save ", ", and the disk of "));
  output_written("--save");
  check_room(snapshots, half, "a snapshot");
  EXPECT_TRUE(says(error_message_of<UsageError>([&] { check_room(save, half, "net"); }),
                   "--save: net takes ", ", --snapshot_dir "));
  output_written("--snapshot_dir");
}

// scripts/soak.sh disk: a job whose disk had filled up ended with code 2, and was not restarted.
TEST_F(OutputCheckTest, DiskThatFilledUpSinceTheFirstAttemptIsNoMistakeOfTheCommandLine) {
  const auto is_usage = [&] {
    try {
      check_room(at(folder_.path()), INT64_MAX, "a snapshot");
    } catch (const UsageError&) {
      return true;
    } catch (const Error&) {
      return false;
    }
    ADD_FAILURE() << "there is no such room";
    return false;
  };
  ::setenv("TORCHELASTIC_RESTART_COUNT", "0", 1);
  EXPECT_TRUE(is_usage());
  ::setenv("TORCHELASTIC_RESTART_COUNT", "1", 1);
  EXPECT_FALSE(is_usage());
  ::unsetenv("TORCHELASTIC_RESTART_COUNT");
  EXPECT_TRUE(is_usage());
}

TEST_F(OutputCheckTest, InputIsKnownThroughLinksAndOtherSpellings) {
  folder_.write("in", "text");
  folder_.write("other", "text");
  fs::create_symlink("in", path("symbolic"));
  fs::create_hard_link(path("in"), path("hard"));
  fs::create_directory(path("sub"));
  for (const auto* name : {"in", "symbolic", "hard", "./in", "sub/../in"}) {
    EXPECT_TRUE(says(overwriting(path(name)), "--out " + path(name).string() + " is the text",
                     path("in").string(), "give another --out"))
        << name;
  }
  EXPECT_EQ(overwriting(path("other")), "");
  EXPECT_EQ(overwriting(path("new")), "");
  EXPECT_EQ(overwriting(""), "");
}

TEST_F(OutputCheckTest, TwoOutputsAreTwoFiles) {
  const auto check = [&](const fs::path& a, const fs::path& b) {
    return error_message_of<UsageError>([&] {
      check_overwrites_nothing({{a, "--svg", "test"}, {b, "--json", "test"}}, {});
    });
  };
  EXPECT_TRUE(says(check(path("new"), path("./new")), "--svg and --json are the same file"));
  EXPECT_EQ(check(path("new"), path("newer")), "");
  EXPECT_EQ(check("/dev/null", "/dev/null"), "");
}

}  // namespace
}  // namespace fleet
