// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <chrono>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

namespace fleet::launch {

/// A program that a test has started, with its output caught in a folder of its own; killed when it
/// goes out of scope, and the folder removed.
///
///   Started program({"sh", "-c", "echo here; exit 3"});
///   EXPECT_EQ(program.wait(), 3);
///   EXPECT_EQ(program.output(), "here\n");
class Started {
 public:
  explicit Started(std::vector<std::string> command);
  ~Started();
  Started(const Started&) = delete;
  Started& operator=(const Started&) = delete;

  pid_t pid() const { return pid_; }
  /// Exit code, 128 + number after a signal, -1 when it has not ended in time.
  int wait(std::chrono::milliseconds timeout = std::chrono::seconds(60));
  void send(int signal) const;
  /// Standard output and error together.
  std::string output() const;
  const std::filesystem::path& folder() const { return folder_; }

 protected:
  Started();
  void start(std::vector<std::string> command);

 private:
  pid_t pid_ = -1;
  bool reaped_ = false;
  std::filesystem::path folder_;
};

/// A fleetrun that a test has started.
///
///   Launched job({"--nproc_per_node", "2", "sh", "-c", "echo $RANK"});
///   EXPECT_EQ(job.wait(), 0);
///   EXPECT_EQ(job.log(1), "1\n");
class Launched : public Started {
 public:
  /// Logs go to `folder()`/log unless the first word says otherwise; `before` goes in front of the
  /// command, such as {"ip", "netns", "exec", "name"}.
  explicit Launched(const std::vector<std::string>& words,
                    const std::vector<std::string>& before = {});

  /// What the rank with this global number has printed.
  std::string log(int rank) const;
};

/// A program of this build: it lies beside the test that asks.
std::string beside(const std::string& program);
std::string contents(const std::filesystem::path& file);
/// Whether `condition` becomes true within `timeout`, times FLEET_TEST_PATIENCE.
bool eventually(const std::function<bool()>& condition,
                std::chrono::milliseconds timeout = std::chrono::seconds(30));
/// Not there, or a zombie that has not been reaped.
bool is_gone(pid_t pid);

}  // namespace fleet::launch
