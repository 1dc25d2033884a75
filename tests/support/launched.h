#pragma once

#include <sys/types.h>

#include <chrono>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

namespace fleet::launch {

/// A fleetrun that a test has started, with its output caught; killed when it goes out of scope.
///
///   Launched job({"--nproc_per_node", "2", "sh", "-c", "echo $RANK"});
///   EXPECT_EQ(job.wait(), 0);
///   EXPECT_EQ(job.log(1), "1\n");
class Launched {
 public:
  /// Logs go to `folder()`/log unless the first word says otherwise; `before` goes in front of the
  /// command, such as {"ip", "netns", "exec", "name"}.
  explicit Launched(const std::vector<std::string>& words,
                    const std::vector<std::string>& before = {});
  ~Launched();
  Launched(const Launched&) = delete;
  Launched& operator=(const Launched&) = delete;

  pid_t pid() const { return pid_; }
  /// Exit code, 128 + number after a signal, -1 when it has not ended in time.
  int wait(std::chrono::milliseconds timeout = std::chrono::seconds(20));
  void send(int signal) const;
  /// Standard output and error together.
  std::string output() const;
  std::string log(int local_rank) const;
  const std::filesystem::path& folder() const { return folder_; }

 private:
  pid_t pid_ = -1;
  bool reaped_ = false;
  std::filesystem::path folder_;
};

std::string contents(const std::filesystem::path& file);
/// Whether `condition` becomes true within `timeout`.
bool eventually(const std::function<bool()>& condition,
                std::chrono::milliseconds timeout = std::chrono::seconds(10));
/// Not there, or a zombie that nobody has collected yet.
bool is_gone(pid_t pid);

}  // namespace fleet::launch
