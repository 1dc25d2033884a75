#include "tools/fleetrun/worker_log.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "fleet/core/error.h"
#include "fleet/core/format.h"

namespace fleet::launch {
namespace {

namespace fs = std::filesystem;

constexpr off_t kTailBytes = 65536;
constexpr size_t kLongestLine = 400;
constexpr auto kFix = "choose another folder with --log_dir";

std::string seen_last(std::string line) {
  while (line.ends_with('\r')) line.pop_back();
  const auto overwritten = line.rfind('\r');
  if (overwritten != std::string::npos) line.erase(0, overwritten + 1);
  std::erase_if(line, [](unsigned char c) { return c < ' ' && c != '\t'; });
  if (line.size() > kLongestLine) {
    line.resize(kLongestLine);
    line += " ...";
  }
  return line;
}

}  // namespace

fs::path make_log_dir(const std::string& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (!error && !fs::is_directory(folder, error))
    error = std::make_error_code(std::errc::not_a_directory);
  if (error)
    throw Error("fleetrun", format("cannot create the log folder {} ({})", folder, error.message()),
                kFix);
  return fs::absolute(folder).lexically_normal();
}

WorkerLog::WorkerLog(const fs::path& folder, int local_rank)
    : path_((folder / format("workerlog.{}", local_rank)).string()) {
  fd_ = ::open(path_.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0644);
  if (fd_ < 0)
    throw Error("fleetrun", format("cannot write {} ({})", path_, std::strerror(errno)), kFix);
}

WorkerLog::~WorkerLog() {
  if (fd_ >= 0) ::close(fd_);
}

WorkerLog::WorkerLog(WorkerLog&& other) noexcept
    : path_(std::move(other.path_)),
      fd_(std::exchange(other.fd_, -1)),
      attempt_start_(other.attempt_start_) {}

void WorkerLog::begin_attempt(int attempt, int max_restarts) {
  if (attempt > 0) {
    const auto line =
        format("---------- fleetrun: restart {} of {} ----------\n", attempt, max_restarts);
    if (::write(fd_, line.data(), line.size()) < 0)
      throw Error("fleetrun", format("cannot write {} ({})", path_, std::strerror(errno)), kFix);
  }
  attempt_start_ = ::lseek(fd_, 0, SEEK_END);
}

std::vector<std::string> WorkerLog::tail(size_t most_lines) const {
  const off_t end = ::lseek(fd_, 0, SEEK_END);
  const off_t begin = std::max(attempt_start_, end - kTailBytes);
  std::string text(static_cast<size_t>(std::max<off_t>(end - begin, 0)), '\0');
  const auto got = ::pread(fd_, text.data(), text.size(), begin);
  text.resize(got > 0 ? static_cast<size_t>(got) : 0);

  std::vector<std::string> lines;
  for (size_t at = 0; at < text.size();) {
    const auto newline = std::min(text.find('\n', at), text.size());
    lines.push_back(seen_last(text.substr(at, newline - at)));
    at = newline + 1;
  }
  if (lines.size() > most_lines)
    lines.erase(lines.begin(), lines.end() - static_cast<std::ptrdiff_t>(most_lines));
  return lines;
}

}  // namespace fleet::launch
