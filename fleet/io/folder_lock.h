// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "fleet/io/lock_file.h"

namespace fleet {

/// Exclusive use of a folder by one job for the lifetime of this object. Another job is refused
/// with the holder's host, pid and start time; the lock of a dead holder is taken over.
///
/// The lock is a file `.lock.N` of the folder with a record of its holder, made by link(2), which
/// is atomic on NFS too; flock and fcntl are not used. N counts up: of several files the highest is
/// the lock, and it is never removed, only superseded by N + 1 or marked as free. So of any number
/// of processes that find holder N dead exactly one makes N + 1, and one that checked long ago
/// finds a higher number when it checks again. Exclusion rests on this alone.
///
/// A holder on this machine (the same boot and pid namespace) is dead when the kernel has no
/// process with its pid and start time; a stopped process is alive. For a holder on another
/// machine, or on this one before it booted, the heartbeat decides: a holder touches its file every
/// `heartbeat`; one that does not for `silence`, by the clock of the watching process, is dead.
/// Clocks of two machines are never compared.
///
/// The ranks of an elastic job share it: each has a member file beside the lock, and the lock is
/// dead when the holder and all members are. `hold` moves it to the rank that calls it.
///
/// Thread-safe. Costs a thread that touches a file every `heartbeat`.
///
///   FolderLock lock("runs/first");   // throws UsageError: in use by another run: pid 812 on vm
///   lock.hold();                     // throws when another job took it over
class FolderLock {
 public:
  struct Options {
    std::string job = {};      ///< empty: a new one
    bool has_members = false;  ///< other ranks of the job have a FolderLock as kMember
    std::chrono::milliseconds heartbeat{2'000};
    std::chrono::milliseconds silence{30'000};
    std::function<void()> before_taking = {};  ///< for tests of races
  };
  enum class Role { kHolder, kMember };

  /// kHolder: acquires it, or throws UsageError. kMember: `options.job` holds it already.
  FolderLock(std::filesystem::path folder, Role role, Options options);
  explicit FolderLock(std::filesystem::path folder)
      : FolderLock(std::move(folder), Role::kHolder, Options{}) {}
  /// Releases it.
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

  const std::filesystem::path& folder() const { return folder_; }
  const std::string& job() const { return record_.job; }
  /// Of the lock, if this process holds it; grows with every holder.
  int64_t generation() const;

  /// Makes this process the holder: takes the lock from another rank of its job, alive or not, and
  /// recreates a removed one. Throws Error when another job holds it.
  void hold();

  /// The job that holds the folder, as seen by this process; empty: none.
  static std::string job_of(const std::filesystem::path& folder);
  /// Throws UsageError when that is not `job`: then ranks do not see the same folder.
  static void check_job(const std::filesystem::path& folder, const std::string& job);

 private:
  void take();
  bool supersede(int64_t generation);
  bool is_abandoned(const LockFile& current) const;
  void release();
  [[noreturn]] void refuse(const LockFile& file) const;

  std::filesystem::path folder_;
  Options options_;
  LockRecord record_;         // of this process
  mutable std::mutex mutex_;  // guards what follows
  int64_t generation_ = 0;    // 0: another rank holds the lock
  bool is_member_ = false;
  bool ends_ = false;
  std::condition_variable wakes_;
  std::thread pulse_;
};

}  // namespace fleet
