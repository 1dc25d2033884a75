// SPDX-License-Identifier: Apache-2.0
#include "fleet/io/folder_lock.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>

#include "fleet/core/error.h"
#include "fleet/core/log.h"
#include "fleet/core/text/format.h"

namespace fleet {
namespace {

using Clock = std::chrono::steady_clock;

std::string holder_text(const LockFile& file) {
  if (!file.record) return format("a process that {} does not name", file.path.string());
  if (file.record->pid == ::getpid() && holder_state(file) == HolderState::kAlive) {
    return format("this process itself ({})", file.record->text());
  }
  return file.record->text();
}

void touch(const std::filesystem::path& path) {
  ::utimensat(AT_FDCWD, path.c_str(), nullptr, 0);  // a failure shows in `hold`
}

}  // namespace

FolderLock::FolderLock(std::filesystem::path folder, Role role, Options options)
    : folder_(std::move(folder)), options_(std::move(options)), record_(LockRecord::own()) {
  record_.job = options_.job.empty() ? random_token() : options_.job;
  record_.token = random_token();
  record_.has_members = options_.has_members;
  if (role == Role::kHolder) {
    take();
  } else {
    check_job(folder_, record_.job);
  }
  if (options_.has_members) {
    make_lock_file(member_path(folder_, record_.token), record_);
    is_member_ = true;
  }
  pulse_ = std::thread([this] {
    std::unique_lock lock(mutex_);
    while (!wakes_.wait_for(lock, options_.heartbeat, [this] { return ends_; })) {
      const auto generation = generation_;
      lock.unlock();  // a server that does not answer must not stop the others
      if (generation > 0) touch(lock_path(folder_, generation));
      if (is_member_) touch(member_path(folder_, record_.token));
      lock.lock();
    }
  });
}

FolderLock::~FolderLock() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  wakes_.notify_all();
  pulse_.join();
  try {
    release();
  } catch (const std::exception& error) {  // it is dead with this process
    log::warn_here("snapshot", format("{} was not unlocked: {}", folder_.string(), error.what()));
  }
}

int64_t FolderLock::generation() const {
  const std::lock_guard lock(mutex_);
  return generation_;
}

void FolderLock::take() {
  for (;;) {
    const auto current = newest_lock(folder_);
    if (current && !is_abandoned(*current)) continue;
    if (options_.before_taking) options_.before_taking();
    if (supersede(current ? current->generation + 1 : 1)) return;
  }
}

// False: another was faster.
bool FolderLock::supersede(int64_t generation) {
  if (!make_lock_file(lock_path(folder_, generation), record_)) return false;
  const auto now = newest_lock(folder_);
  const bool is_ours = now && now->record && now->record->token == record_.token;
  if (!is_ours) {  // long superseded: this process has looked at it too long ago
    ::unlink(lock_path(folder_, generation).c_str());
    return false;
  }
  generation_ = generation;
  remove_older_locks(folder_, generation, record_.job);
  return true;
}

// Whether its holder and the members of its job are dead; false: another lock has to be looked at.
// Waits where only a heartbeat can tell.
bool FolderLock::is_abandoned(const LockFile& current) const {
  auto holders = current.record && current.record->has_members
                     ? member_files(folder_, current.record->job)
                     : std::vector<LockFile>{};
  holders.push_back(current);
  std::vector<LockFile> silent;
  for (const auto& file : holders) {
    const auto state = holder_state(file);
    if (state == HolderState::kAlive) refuse(file);
    if (state == HolderState::kUnknown) silent.push_back(file);
  }
  if (silent.empty()) return true;
  log::info("snapshot", format("{} was in use by {}: its heartbeat is watched for up to {:.1f} s",
                               folder_.string(), holder_text(silent.front()),
                               std::chrono::duration<double>(options_.silence).count()));
  const auto end = Clock::now() + options_.silence;
  while (Clock::now() < end) {
    std::this_thread::sleep_for(std::max(options_.heartbeat / 4, std::chrono::milliseconds(1)));
    const auto newest = newest_lock(folder_);
    const bool is_same = newest && newest->generation == current.generation &&
                         !(newest->record && newest->record->is_free);
    if (!is_same) return false;
    for (const auto& then : silent) {
      const auto now = read_lock_file(then.path);
      if (now && now->is_touched_since(then)) refuse(*now);
    }
  }
  return true;
}

void FolderLock::hold() {
  const std::lock_guard lock(mutex_);
  for (;;) {
    const auto current = newest_lock(folder_);
    if (current && current->record && current->record->token == record_.token) return;
    const bool is_other =
        current &&
        !(current->record && (current->record->is_free || current->record->job == record_.job));
    if (is_other && holder_state(*current) != HolderState::kDead) {
      throw Error("snapshot",
                  format("{} was taken over by another run, {}, which found this one dead: two "
                         "runs would delete each other's snapshots",
                         folder_.string(), holder_text(*current)),
                  "end one of them; a run on another machine takes a folder over when its holder "
                  "was stopped, or cut off from the disk, for too long");
    }
    if (supersede(std::max(generation_, current ? current->generation : 0) + 1)) return;
  }
}

void FolderLock::release() {
  if (is_member_) ::unlink(member_path(folder_, record_.token).c_str());
  if (generation_ == 0) return;
  const auto path = lock_path(folder_, generation_);
  const auto file = read_lock_file(path);
  if (!file || !file->record || file->record->token != record_.token) return;
  auto free = record_;
  free.is_free = true;
  replace_lock_file(path, free);
}

void FolderLock::refuse(const LockFile& file) const {
  throw UsageError(
      "snapshot",
      format("{} is in use by another run: {}; two runs would delete each other's snapshots",
             folder_.string(), holder_text(file)),
      format("give each run a --snapshot_dir of its own, or end the other one; if the folder is a "
             "copy of that run's, remove {}",
             file.path.string()));
}

void FolderLock::check_job(const std::filesystem::path& folder, const std::string& job) {
  if (job_of(folder) == job) return;
  throw UsageError("snapshot",
                   format("{} on {} is not the folder that this job has locked: its ranks do not "
                          "see the same one",
                          folder.string(), LockRecord::own().host),
                   "give a --snapshot_dir that all ranks see, on a file system that they share");
}

std::string FolderLock::job_of(const std::filesystem::path& folder) {
  const auto current = newest_lock(folder);
  if (!current || !current->record) return "";
  const auto& record = *current->record;
  const bool is_left =
      record.is_free && (!record.has_members || member_files(folder, record.job).empty());
  return is_left ? "" : record.job;
}

}  // namespace fleet
