// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <random>

#include "fleet/core/xx_hash64.h"
#include "fleet/snapshot/snapshot_folder.h"
#include "fleet/snapshot/snapshots.h"

#include "tests/data/temporary_folder.h"
#include "tests/snapshot/numbers.h"
#include "tests/snapshot/snapshot_training.h"
#include "tests/support/launched.h"
#include "tests/support/says.h"

namespace fleet {
namespace {

using namespace testing;  // NOLINT
namespace fs = std::filesystem;
using launch::contents;

/// Two snapshots of two ranks, and what is in the first.
class DamagedSnapshotTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    whole_ = std::make_unique<TemporaryFolder>();
    run_ranks(2, [&](const Comm& comm) {
      TrainingRank rank({}, comm);
      auto data = numbers_of(comm, 4);
      rank.train(0, 2);
      save_snapshot(whole_->path(), rank.optimizer(), data);
      rank.train(2, 3);
      save_snapshot(whole_->path(), rank.optimizer(), data);
    });
  }
  static void TearDownTestSuite() { whole_.reset(); }

  /// Damages a copy of the newer one; what the log said, when the older one was taken.
  static std::string said_about(const std::function<void(const fs::path& newer)>& damage) {
    const TemporaryFolder folder;
    fs::copy(whole_->path(), folder.path(), fs::copy_options::recursive);
    damage(snapshot_folder(folder.path(), 3));
    ::testing::internal::CaptureStderr();
    ::testing::internal::CaptureStdout();
    run_ranks(2, [&](const Comm& comm) {
      TrainingRank rank({}, comm);
      auto data = numbers_of(comm, 4);
      EXPECT_EQ(load_snapshot(folder.path(), rank.optimizer(), data), 2);
      EXPECT_EQ(rank.optimizer().updates(), 2);
    });
    return ::testing::internal::GetCapturedStdout() + ::testing::internal::GetCapturedStderr();
  }

  static std::vector<std::string> files() {
    std::vector<std::string> names;
    for (const auto& item : fs::directory_iterator(snapshot_folder(whole_->path(), 3))) {
      names.push_back(item.path().filename());
    }
    return names;
  }

  static std::unique_ptr<TemporaryFolder> whole_;
};
std::unique_ptr<TemporaryFolder> DamagedSnapshotTest::whole_;

TEST_F(DamagedSnapshotTest, HasTheFilesOfThePage) {
  auto names = files();
  std::sort(names.begin(), names.end());
  EXPECT_EQ(names, (std::vector<std::string>{
                       "checksums.xxh64", "model.safetensors", "optimizer.safetensors",
                       "rank-0.data.json", "rank-0.json", "rank-0.safetensors", "rank-1.data.json",
                       "rank-1.json", "rank-1.safetensors", "training.json"}));
}

// 100 flips, over all kinds of files.
TEST_F(DamagedSnapshotTest, AFlippedBitAnywhereIsNoticed) {
  std::mt19937_64 random(11);
  for (const auto& name : files()) {
    for (int round = 0; round < 10; ++round) {
      const auto said = said_about([&](const fs::path& newer) {
        auto bytes = contents(newer / name);
        const auto bit = random() % (bytes.size() * 8);
        bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ (1 << bit % 8));
        std::ofstream(newer / name, std::ios::binary) << bytes;
      });
      // A wrong hash or name in the list is found at the file that it belongs to.
      EXPECT_TRUE(says(said, "step-00000003 is not used: rank",
                       "step-00000003/" + (name == "checksums.xxh64" ? "" : name)));
    }
  }
}

TEST_F(DamagedSnapshotTest, ATruncatedFileIsNoticed) {
  std::mt19937_64 random(12);
  for (const auto& name : files()) {
    const auto size = fs::file_size(snapshot_folder(whole_->path(), 3) / name);
    for (const auto left : {uintmax_t{0}, random() % size, size - 1}) {
      const auto said =
          said_about([&](const fs::path& newer) { fs::resize_file(newer / name, left); });
      EXPECT_TRUE(says(said, "step-00000003 is not used: rank",
                       "step-00000003/" + (name == "checksums.xxh64" ? "" : name)));
    }
  }
}

TEST_F(DamagedSnapshotTest, AMissingFileIsNoticed) {
  for (const auto& name : files()) {
    const auto said = said_about([&](const fs::path& newer) { fs::remove(newer / name); });
    EXPECT_TRUE(says(said, "step-00000003 is not used", name, "it is missing"));
  }
}

TEST_F(DamagedSnapshotTest, AnotherFormatIsNamed) {
  const auto said = said_about([](const fs::path& newer) {
    FileHashes hashes = SnapshotReader(newer.parent_path(), 3).files();
    auto text = contents(newer / "training.json");
    text.replace(text.find("\"format\": 1"), 11, "\"format\": 3");
    const TemporaryFolder folder;
    hashes["training.json"] = XxHash64::of_file(folder.write("training.json", text));
    FolderLock lock(newer.parent_path());
    NewSnapshot snapshot(lock, 3);
    for (const auto& [name, hash] : hashes) fs::copy(newer / name, snapshot.hidden() / name);
    fs::copy(folder.path() / "training.json", snapshot.hidden() / "training.json",
             fs::copy_options::overwrite_existing);
    snapshot.publish(hashes);
  });
  EXPECT_TRUE(says(said, "format 3 is not known here", "the version of Fleet that wrote it"));
}

TEST_F(DamagedSnapshotTest, WhenNoneIsLeftItIsAnError) {
  const TemporaryFolder folder;
  fs::copy(whole_->path(), folder.path(), fs::copy_options::recursive);
  for (const int64_t step : {2, 3}) {
    fs::resize_file(snapshot_folder(folder.path(), step) / "model.safetensors", 100);
  }
  TrainingRank rank({}, single_rank());
  EXPECT_TRUE(
      says(error_message_of<UsageError>([&] { load_snapshot(folder.path(), rank.optimizer()); }),
           "none of the 2 snapshots", "move them away"));
  fs::remove_all(snapshot_folder(folder.path(), 2));
  EXPECT_TRUE(
      says(error_message_of<UsageError>([&] { load_snapshot(folder.path(), rank.optimizer()); }),
           "the snapshot in", "cannot be used"));
}

}  // namespace
}  // namespace fleet
