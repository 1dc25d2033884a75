// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "fleet/io/folder_lock.h"

namespace fleet {

/// Names of files and what they hash to (XXH64).
using FileHashes = std::map<std::string, uint64_t>;

/// The folder of one snapshot among those of `dir`: step-00001234.
std::filesystem::path snapshot_folder(const std::filesystem::path& dir, int64_t step);

/// The steps of the snapshots in `dir`, newest first; none when there is no such folder.
std::vector<int64_t> snapshots_in(const std::filesystem::path& dir);

/// How a folder takes the place of another; for tests of file systems without RENAME_EXCHANGE, and
/// of a process that dies in between.
struct PublishOptions {
  /// Swaps two folders; returns 0, or what errno says.
  std::function<int(const std::filesystem::path&, const std::filesystem::path&)> exchange = {};
  std::function<void()> between_renames = {};
};

/// A snapshot until it is complete. Its files go into a hidden folder, which becomes visible in one
/// rename when all of them are on the disk: a process that dies at any moment leaves either a
/// complete snapshot or a hidden folder, which the next one removes.
///
/// A snapshot of the same step is exchanged with it. Where the file system cannot (NFS), the old
/// one is renamed aside first, and `finish_interrupted` completes what a process left that died
/// between the two renames.
///
/// Needs the lock of the folder, and sees before the first file and before the rename that it still
/// has it. The hidden folder has the lock's generation in its name: a process that lost the lock
/// while it was stopped does not write among the files of the one that took it over. Several ranks
/// write into `hidden()`, one of them has the object.
///
///   FolderLock lock("snapshots");
///   NewSnapshot snapshot(lock, 1200);
///   hashes["notes.json"] = write_file_atomically(snapshot.hidden() / "notes.json", text,
///   "snapshot"); snapshot.publish(hashes); remove_older_snapshots("snapshots", 1200, /*keep=*/2);
class NewSnapshot {
 public:
  NewSnapshot(FolderLock& lock, int64_t step);
  ~NewSnapshot();
  NewSnapshot(const NewSnapshot&) = delete;
  NewSnapshot& operator=(const NewSnapshot&) = delete;

  static std::filesystem::path hidden(const std::filesystem::path& dir, int64_t step,
                                      int64_t generation);
  std::filesystem::path hidden() const { return hidden(lock_.folder(), step_, generation_); }

  /// All files must be there, and no others. Takes the place of a snapshot of the same step.
  void publish(const FileHashes& files, const PublishOptions& options = {});

 private:
  FolderLock& lock_;
  int64_t step_;
  int64_t generation_ = 0;
};

/// Completes an exchange of snapshots that a dead process began. The caller holds the lock.
void finish_interrupted(const std::filesystem::path& dir);
/// Whether there is one.
bool has_interrupted(const std::filesystem::path& dir);

/// Removes all but the newest `keep` of the snapshots up to `step`. Newer ones stay: they are
/// damaged, or of a run that resumed from elsewhere, and not ours to remove.
void remove_older_snapshots(const std::filesystem::path& dir, int64_t step, int keep);

/// A snapshot to read. Files have no name in it that its list of hashes lacks.
class SnapshotReader {
 public:
  /// Throws when the list of hashes is not there or not complete.
  SnapshotReader(const std::filesystem::path& dir, int64_t step);

  const std::filesystem::path& folder() const { return folder_; }
  const FileHashes& files() const { return files_; }

  /// The path of a file whose hash is right; throws and names it otherwise.
  std::filesystem::path checked(const std::string& name) const;
  /// The same as text.
  std::string text_of(const std::string& name) const;

 private:
  [[noreturn]] void refuse(const std::string& file, const std::string& what) const;

  std::filesystem::path folder_;
  FileHashes files_;
};

}  // namespace fleet
