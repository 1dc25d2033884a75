// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "fleet/core/process/descriptor.h"

namespace fleet::launch {

/// `workerlog.N` of the rank with the global number N, continued over restarts of the job. A file
/// that an earlier job has left becomes `workerlog.N.1`, that one `.2`, and so on.
///
/// A full disk does not end a training: what cannot be written is counted, and replaced by a line
/// once there is room again. The end of the output is kept in memory for `tail()`.
/// All calls are safe from several threads.
///
///   WorkerLog log("log", 1, {.keep = 5});
///   log.begin_attempt(0, 2);
///   log.append("step 1\n");
///   log.tail();   // the last lines of this attempt
class WorkerLog {
 public:
  struct Options {
    int keep = 5;  // files of earlier jobs
  };

  /// Throws UsageError for a file that may not be written, but not for a full disk.
  WorkerLog(const std::filesystem::path& folder, int rank, const Options& options);

  const std::string& path() const { return path_; }
  int rank() const { return rank_; }

  void append(std::string_view text);
  /// Writes a line, from the first restart on.
  void begin_attempt(int attempt, int max_restarts);

  /// The last lines of this attempt for the user (log_tail.h).
  std::vector<std::string> tail() const;
  /// The end of this attempt's output, unchanged.
  std::string end_of_output() const;

  /// Why something could not be written, and how much.
  struct Loss {
    std::string reason;
    int64_t bytes = 0;
  };
  /// Nothing as long as all of it is in the file.
  std::optional<Loss> loss() const;

 private:
  bool open();
  void write(std::string_view text);

  const std::string path_;
  const int rank_;
  mutable std::mutex mutex_;  // guards what follows
  Descriptor file_;           // none: the disk had no room for a new file
  std::string kept_;          // the end of this attempt's output
  int64_t missing_ = 0;       // bytes since the last that was written
  std::optional<Loss> loss_;
};

/// Creates the folder where it is missing; throws UsageError when that fails. Returns its absolute
/// path.
std::filesystem::path make_log_dir(const std::string& folder);

}  // namespace fleet::launch
