// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "fleet/core/process/descriptor.h"
#include "fleet/io/lock_file.h"

namespace fleet::launch {

/// One job per log folder. Every launcher of a job holds a file of its own there, `.fleetrun.N` for
/// node N, so the nodes of one job may share the folder, and another job is refused. A FolderLock
/// has one holder, and needs a disk with room; this one has neither limit.
///
/// Whether a holder is alive is decided by, in this order: its pid and start time, where it runs on
/// this machine; the kernel's lock on the file (flock), where the file system is local; else by its
/// heartbeat: it touches the file every 5 s, and one that does not for 15 s is dead. So NFS without
/// locks is enough. The file of a dead holder is taken over; an orderly end empties it. On a full
/// disk there is only the kernel's lock.
///
///   const LogFolderLock lock("log", 0, job);   // refuses with the holder's host, pid and start
class LogFolderLock {
 public:
  /// Other values are for tests.
  struct Options {
    std::chrono::milliseconds heartbeat{5000};
    std::chrono::milliseconds silence{15000};  // without a heartbeat: dead
    std::optional<bool> has_local_locks = {};  // default: by the type of the file system
  };

  /// `job` is the same on all nodes of a job. Throws UsageError.
  LogFolderLock(const std::filesystem::path& folder, int node, const std::string& job);
  LogFolderLock(const std::filesystem::path& folder, int node, const std::string& job,
                const Options& options);
  ~LogFolderLock();
  LogFolderLock(const LogFolderLock&) = delete;
  LogFolderLock& operator=(const LogFolderLock&) = delete;

 private:
  void take(const std::filesystem::path& file, const std::string& job);
  void check_other_nodes(const std::filesystem::path& own, const std::string& job) const;
  /// The living holder of that file; nothing when it is free.
  std::optional<LockRecord> living_holder(int fd, bool is_locked) const;
  bool has_heartbeat(int fd) const;
  void refuse(const LockRecord& holder) const;
  void release();
  void beat();

  const std::filesystem::path folder_;
  const Options options_;
  Descriptor file_;   // none: the disk was full
  std::string text_;  // what this holder has written
  std::mutex mutex_;  // guards stop_
  std::condition_variable wake_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace fleet::launch
