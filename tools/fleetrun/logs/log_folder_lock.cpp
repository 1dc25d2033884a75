// SPDX-License-Identifier: Apache-2.0
#include "tools/fleetrun/logs/log_folder_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "fleet/core/error.h"
#include "fleet/core/log.h"
#include "fleet/core/text/format.h"

namespace fleet::launch {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr std::string_view kPrefix = ".fleetrun.";
constexpr int kMaxTries = 5;  // each after another launcher was quicker
constexpr int kMaxQuestions = 10;
constexpr auto kQuestion = std::chrono::milliseconds(10);
constexpr auto kPollInterval = std::chrono::milliseconds(100);

// File systems on which flock() holds for all processes that can open the file.
bool is_on_local_disk(int fd) {
  struct statfs about {};
  if (::fstatfs(fd, &about) != 0) return false;
  // ext2 to ext4, XFS, Btrfs, tmpfs, overlay, F2FS, ZFS
  for (const uint32_t kind :
       {0xEF53U, 0x58465342U, 0x9123683EU, 0x01021994U, 0x794C7630U, 0xF2F52010U, 0x2FC12FC1U})
    if (static_cast<uint32_t>(about.f_type) == kind) return true;
  return false;
}

std::string read_all(int fd) {
  std::array<char, 4096> buffer{};
  const auto got = ::pread(fd, buffer.data(), buffer.size(), 0);
  return got > 0 ? std::string(buffer.data(), static_cast<size_t>(got)) : "";
}

bool is_same_file(int fd, const fs::path& file) {
  struct stat open {
  }, named{};
  return ::fstat(fd, &open) == 0 && ::stat(file.c_str(), &named) == 0 &&
         open.st_ino == named.st_ino && open.st_dev == named.st_dev;
}

// Takes the lock when it is free, where the file system has locks; a shared one is only a question,
// and a launcher that asks just now does not count as a holder.
bool is_locked_by_another(int fd, int kind) {
  for (int tries = 0; tries < kMaxQuestions; ++tries) {
    if (::flock(fd, kind | LOCK_NB) == 0 || errno != EWOULDBLOCK) {
      if (kind == LOCK_SH) ::flock(fd, LOCK_UN);
      return false;
    }
    std::this_thread::sleep_for(kQuestion);
  }
  return true;
}

}  // namespace

LogFolderLock::LogFolderLock(const fs::path& folder, int node, const std::string& job)
    : LogFolderLock(folder, node, job, Options()) {}

LogFolderLock::LogFolderLock(const fs::path& folder, int node, const std::string& job,
                             const Options& options)
    : folder_(folder), options_(options) {
  const auto own = folder / format("{}{}", kPrefix, node);
  take(own, job);
  try {
    check_other_nodes(own, job);
  } catch (...) {
    release();
    throw;
  }
  thread_ = std::thread([this] { beat(); });
}

LogFolderLock::~LogFolderLock() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  thread_.join();
  release();
}

void LogFolderLock::take(const fs::path& path, const std::string& job) {
  for (int tries = 0; tries < kMaxTries; ++tries) {
    Descriptor file(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
    if (!file && (errno == ENOSPC || errno == EDQUOT)) return;  // the logs report it
    if (!file)
      throw UsageError("fleetrun",
                       format("cannot write {} ({})", path.string(), std::strerror(errno)),
                       "choose another folder with --log_dir");
    const bool is_locked = is_locked_by_another(file.get(), LOCK_EX);
    if (const auto holder = living_holder(file.get(), is_locked)) refuse(*holder);
    if (is_locked) ::unlink(path.c_str());  // by a lost machine: use a new file
    if (is_locked || !is_same_file(file.get(), path)) continue;
    auto record = LockRecord::own();
    record.job = job;
    text_ = record.serialize();
    // On a full disk there is no text, and the kernel's lock is all.
    if (::ftruncate(file.get(), 0) == 0) (void)!::pwrite(file.get(), text_.data(), text_.size(), 0);
    file_ = std::move(file);
    return;
  }
  throw UsageError("fleetrun",
                   format("several jobs start with the same log folder {}", folder_.string()),
                   "choose another folder with --log_dir");
}

void LogFolderLock::check_other_nodes(const fs::path& own, const std::string& job) const {
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder_, error)) {
    if (!entry.path().filename().string().starts_with(kPrefix) || entry.path() == own) continue;
    const Descriptor file(::open(entry.path().c_str(), O_RDONLY | O_CLOEXEC));
    if (!file) continue;
    const auto holder = LockRecord::parse(read_all(file.get()));
    if (!holder || holder->job == job) continue;
    const auto living = living_holder(file.get(), is_locked_by_another(file.get(), LOCK_SH));
    if (living) refuse(*living);
  }
}

std::optional<LockRecord> LogFolderLock::living_holder(int fd, bool is_locked) const {
  auto holder = LockRecord::parse(read_all(fd));
  const bool kernel_knows = options_.has_local_locks.value_or(is_on_local_disk(fd));
  if (is_locked && (kernel_knows || !holder)) return holder.value_or(LockRecord{});
  if (!holder) return std::nullopt;
  const auto state = holder_state(*holder);
  if (state != HolderState::kUnknown) return state == HolderState::kAlive ? holder : std::nullopt;
  if (kernel_knows) return std::nullopt;
  log::info("fleetrun", format("{} is held by fleetrun with {}: its heartbeat is watched for up to "
                               "{:.0f} s",
                               folder_.string(), holder->text(),
                               std::chrono::duration<double>(options_.silence).count()));
  return has_heartbeat(fd) ? holder : std::nullopt;
}

// Whether the file is touched while one looks at it. Opening it again is what makes NFS ask its
// server.
bool LogFolderLock::has_heartbeat(int fd) const {
  const auto touched = [&] {
    struct stat about {};
    const Descriptor again(::open(format("/proc/self/fd/{}", fd).c_str(), O_RDONLY | O_CLOEXEC));
    ::fstat(again ? again.get() : fd, &about);
    return std::pair(about.st_mtim.tv_sec, about.st_mtim.tv_nsec);
  };
  const auto before = touched();
  const auto deadline = Clock::now() + options_.silence;
  while (Clock::now() < deadline) {
    std::this_thread::sleep_for(std::min(kPollInterval, options_.heartbeat));
    if (touched() != before) return true;
  }
  return false;
}

void LogFolderLock::refuse(const LockRecord& holder) const {
  const auto who = holder.pid == 0 ? std::string() : format(": fleetrun with {}", holder.text());
  throw UsageError("fleetrun", format("another job writes its logs to {}{}", folder_.string(), who),
                   "choose another folder with --log_dir, or end that job");
}

void LogFolderLock::release() {
  if (!file_) return;
  // Another may have taken it over from one that seemed dead, such as a launcher that was stopped.
  if (read_all(file_.get()) == text_) (void)!::ftruncate(file_.get(), 0);
  file_ = Descriptor();
}

void LogFolderLock::beat() {
  std::unique_lock lock(mutex_);
  while (!wake_.wait_for(lock, options_.heartbeat, [&] { return stop_; }))
    if (file_) ::futimens(file_.get(), nullptr);
}

}  // namespace fleet::launch
