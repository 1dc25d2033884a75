// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>

#include "fleet/comm/communicator.h"
#include "fleet/io/folder_lock.h"

namespace fleet {

class SnapshotWriter;

/// A job's lock on its folder of snapshots, from before the first of them is read to the end of the
/// run. All ranks make one; the first of them has the lock (io/folder_lock.h), in an elastic job
/// each is a member.
///
/// Making it sees that every rank can write there and that all of them see the same folder, and
/// completes what a dead writer left half renamed. A refusal on any rank throws on all.
///
///   const SnapshotLock lock("runs/first", *comm, SnapshotLock::Entry::kCollective);
class SnapshotLock {
 public:
  /// kJoining: a restarted rank to an elastic job that has the folder already; no calls between
  /// ranks are made.
  enum class Entry { kCollective, kJoining };

  SnapshotLock(std::filesystem::path dir, comm::Communicator& comm, Entry entry);
  ~SnapshotLock();
  SnapshotLock(const SnapshotLock&) = delete;
  SnapshotLock& operator=(const SnapshotLock&) = delete;

  /// Throws on all ranks when the disk has no room for what they write together: `writer` writes
  /// this rank's part; or when its largest file is beyond the limit of file sizes.
  void check_room(comm::Communicator& comm, const SnapshotWriter& writer) const;

  const std::filesystem::path& dir() const { return dir_; }
  /// Null on ranks that never write the snapshot's end.
  FolderLock* lock() const { return lock_.get(); }

 private:
  std::filesystem::path dir_;
  std::unique_ptr<FolderLock> lock_;
};

}  // namespace fleet
