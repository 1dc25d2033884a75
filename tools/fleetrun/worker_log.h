#pragma once

#include <sys/types.h>

#include <filesystem>
#include <string>
#include <vector>

namespace fleet::launch {

/// `workerlog.N` of one local rank: emptied when the job starts, continued over restarts.
///
///   WorkerLog log("log", 1);
///   log.begin_attempt(0, 2);
///   log.tail(20);   // the last lines of this attempt
class WorkerLog {
 public:
  WorkerLog(const std::filesystem::path& folder, int local_rank);
  ~WorkerLog();
  WorkerLog(WorkerLog&& other) noexcept;
  WorkerLog& operator=(WorkerLog&&) = delete;

  int fd() const { return fd_; }
  const std::string& path() const { return path_; }

  /// A line that says so, from the first restart on.
  void begin_attempt(int attempt, int max_restarts);

  /// The last lines of this attempt; of a progress line what was seen last, no control characters.
  std::vector<std::string> tail(size_t most_lines) const;

 private:
  std::string path_;
  int fd_ = -1;
  off_t attempt_start_ = 0;
};

/// Creates the folder where it is missing; throws fleet::Error when that fails or it is read-only.
std::filesystem::path make_log_dir(const std::string& folder);

}  // namespace fleet::launch
