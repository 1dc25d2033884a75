// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <ctime>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace fleet {

/// What a lock file says of the process that made it.
struct LockRecord {
  bool is_free = false;      // released by its holder
  std::string host = {};     // for messages
  std::string host_id = {};  // equal where one kernel knows both processes (comm::host_id)
  int pid = 0;
  uint64_t started = 0;    // tells it from a later process with the same pid
  std::string since = {};  // for messages
  std::string job = {};
  std::string token = {};  // of one FolderLock alone
  bool has_members = false;

  /// Of this process.
  static LockRecord own();
  /// "pid 812 on vm, since 2026-11-17 15:02:11"
  std::string text() const;

  /// The content of a lock file, and the record in it; nothing when that is not complete.
  std::string serialize() const;
  static std::optional<LockRecord> parse(const std::string& content);
};

/// kUnknown: the process is of another machine, or of this one before it booted.
enum class HolderState { kAlive, kDead, kUnknown };
HolderState holder_state(const LockRecord& record);

/// 64 random bits in hexadecimal: the name of a job or of a holder that no other has.
std::string random_token();

struct LockFile {
  std::filesystem::path path;
  int64_t generation = 0;            // 0: a member's
  std::optional<LockRecord> record;  // none: not complete
  std::timespec touched = {};

  bool is_touched_since(const LockFile& then) const {
    return touched.tv_sec != then.touched.tv_sec || touched.tv_nsec != then.touched.tv_nsec;
  }
};

std::filesystem::path lock_path(const std::filesystem::path& folder, int64_t generation);
std::filesystem::path member_path(const std::filesystem::path& folder, const std::string& token);

/// Nothing when it is not there.
std::optional<LockFile> read_lock_file(const std::filesystem::path& path);
/// The one with the highest generation.
std::optional<LockFile> newest_lock(const std::filesystem::path& folder);
/// Those of the ranks of a job.
std::vector<LockFile> member_files(const std::filesystem::path& folder, const std::string& job);

/// Complete at once, or not there; false when there was one already.
bool make_lock_file(const std::filesystem::path& path, const LockRecord& record);
/// The same over one that is there.
void replace_lock_file(const std::filesystem::path& path, const LockRecord& record);
/// All locks below `generation`, and members of other jobs than `job`.
void remove_older_locks(const std::filesystem::path& folder, int64_t generation,
                        const std::string& job);

/// kUnknown where the record is not complete.
HolderState holder_state(const LockFile& file);

}  // namespace fleet
