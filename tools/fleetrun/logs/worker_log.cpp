// SPDX-License-Identifier: Apache-2.0
#include "tools/fleetrun/logs/worker_log.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "fleet/core/error.h"
#include "fleet/core/text/format.h"

#include "tools/fleetrun/logs/log_tail.h"

namespace fleet::launch {
namespace {

namespace fs = std::filesystem;

constexpr size_t kKeptBytes = 256 << 10;
constexpr auto kFix = "choose another folder with --log_dir";

bool is_without_room(int error) { return error == ENOSPC || error == EDQUOT; }

// workerlog.N -> workerlog.N.1 -> ... -> workerlog.N.KEEP, and the last one goes. Anything but a
// file (a device, a pipe) is not of an earlier job. What fails here shows when the log is opened.
void move_older(const fs::path& path, int keep) {
  std::error_code error;
  if (keep == 0 || !fs::is_regular_file(path, error) || fs::file_size(path, error) == 0) return;
  const auto older = [&](int number) { return fs::path(format("{}.{}", path.string(), number)); };
  for (int number = keep - 1; number > 0; --number)
    fs::rename(older(number), older(number + 1), error);
  fs::rename(path, older(1), error);
}

}  // namespace

fs::path make_log_dir(const std::string& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (!error && !fs::is_directory(folder, error))
    error = std::make_error_code(std::errc::not_a_directory);
  if (error)
    throw UsageError("fleetrun",
                     format("cannot create the log folder {} ({})", folder, error.message()), kFix);
  return fs::absolute(folder).lexically_normal();
}

WorkerLog::WorkerLog(const fs::path& folder, int rank, const Options& options)
    : path_((folder / format("workerlog.{}", rank)).string()), rank_(rank) {
  move_older(path_, options.keep);
  if (open()) return;
  if (!is_without_room(errno))
    throw UsageError("fleetrun", format("cannot write {} ({})", path_, std::strerror(errno)), kFix);
  loss_ = Loss{std::strerror(errno), 0};
}

bool WorkerLog::open() {
  // Without O_NONBLOCK a pipe that nobody reads would block here for ever.
  constexpr int kFlags =
      O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC | O_NOCTTY | O_NONBLOCK;
  file_ = Descriptor(::open(path_.c_str(), kFlags, 0644));
  if (!file_) return false;
  ::fcntl(file_.get(), F_SETFL, ::fcntl(file_.get(), F_GETFL) & ~O_NONBLOCK);
  return true;
}

void WorkerLog::append(std::string_view text) {
  const std::lock_guard lock(mutex_);
  write(text);
  kept_ += text;
  if (kept_.size() > 2 * kKeptBytes) kept_.erase(0, kept_.size() - kKeptBytes);
}

void WorkerLog::write(std::string_view text) {
  std::string note, with_note;
  if (missing_ > 0) {
    note = format("\n---------- fleetrun: {} bytes are missing here ({}) ----------\n", missing_,
                  loss_->reason);
    with_note = note + std::string(text);
    text = with_note;
  }
  size_t done = 0;
  while (done < text.size() && (file_ || open())) {
    const auto wrote = ::write(file_.get(), text.data() + done, text.size() - done);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote <= 0) break;
    done += static_cast<size_t>(wrote);
  }
  if (done == text.size()) {
    missing_ = 0;
    return;
  }
  const int error = errno;
  const auto lost = static_cast<int64_t>(text.size() - std::max(done, note.size()));
  if (!loss_) loss_.emplace();
  loss_->reason = std::strerror(error);
  loss_->bytes += lost;
  missing_ += lost;
}

void WorkerLog::begin_attempt(int attempt, int max_restarts) {
  const std::lock_guard lock(mutex_);
  if (attempt > 0)
    write(format("---------- fleetrun: restart {} of {} ----------\n", attempt, max_restarts));
  kept_.clear();
}

std::vector<std::string> WorkerLog::tail() const {
  const char* wanted = std::getenv("FLEET_BACKTRACE");
  return tail_of(end_of_output(), {.with_frames = wanted != nullptr && wanted == std::string("1")});
}

std::string WorkerLog::end_of_output() const {
  const std::lock_guard lock(mutex_);
  return kept_;
}

std::optional<WorkerLog::Loss> WorkerLog::loss() const {
  const std::lock_guard lock(mutex_);
  return loss_;
}

}  // namespace fleet::launch
