#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace fleet {

/// Names of files and what they hash to (XXH64).
using FileHashes = std::map<std::string, uint64_t>;

/// The folder of one snapshot among those of `dir`: step-00001234.
std::filesystem::path snapshot_folder(const std::filesystem::path& dir, int64_t step);

/// The steps of the snapshots in `dir`, newest first; none when there is no such folder.
std::vector<int64_t> snapshots_in(const std::filesystem::path& dir);

/// A snapshot until it is whole. Its files go into a hidden folder, which becomes visible in one
/// rename when all of them are on the disk: a process that dies at any moment leaves either a whole
/// snapshot or a hidden folder, which the next one removes.
///
/// Holds a lock on `dir`, so that two runs do not share it by mistake. Several ranks write into
/// `hidden()`, one of them has the object.
///
///   NewSnapshot snapshot("snapshots", 1200);
///   hashes["notes.json"] = write_new_file(snapshot.hidden() / "notes.json", text, "snapshot");
///   snapshot.publish(hashes);
///   remove_older_snapshots("snapshots", 1200, /*keep=*/2);
class NewSnapshot {
 public:
  NewSnapshot(std::filesystem::path dir, int64_t step);
  ~NewSnapshot();
  NewSnapshot(const NewSnapshot&) = delete;
  NewSnapshot& operator=(const NewSnapshot&) = delete;

  static std::filesystem::path hidden(const std::filesystem::path& dir, int64_t step);
  std::filesystem::path hidden() const { return hidden(dir_, step_); }

  /// All files must be there, and no others. Takes the place of a snapshot of the same step.
  void publish(const FileHashes& files);

 private:
  std::filesystem::path dir_;
  int64_t step_;
  int lock_ = -1;
};

/// Removes all but the newest `keep` of the snapshots up to `step`. Newer ones stay: they are
/// damaged, or of a run that went on from elsewhere, and not ours to remove.
void remove_older_snapshots(const std::filesystem::path& dir, int64_t step, int keep);

/// A snapshot to read. Files have no name in it that its list of hashes lacks.
class SnapshotReader {
 public:
  /// Throws when the list of hashes is not there or not whole.
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
