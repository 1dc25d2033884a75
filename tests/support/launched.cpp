// SPDX-License-Identifier: Apache-2.0
#include "tests/support/launched.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <fstream>
#include <sstream>
#include <thread>

#include "fleet/core/text/format.h"

#include "tests/support/patience.h"

namespace fleet::launch {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

std::atomic<int> g_jobs{0};

}  // namespace

Started::Started()
    : folder_(fs::temp_directory_path() / format("fleet_test_{}_{}", getpid(), g_jobs++)) {
  fs::create_directories(folder_);
}

Started::Started(std::vector<std::string> command) : Started() { start(std::move(command)); }

void Started::start(std::vector<std::string> command) {
  std::vector<char*> list;
  for (auto& word : command) list.push_back(word.data());
  list.push_back(nullptr);
  const auto out = (folder_ / "output").string();
  pid_ = fork();
  if (pid_ == 0) {
    const int fd = open(out.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0644);
    dup2(fd, STDOUT_FILENO);
    dup2(fd, STDERR_FILENO);
    execvp(list[0], list.data());
    _exit(99);
  }
}

Started::~Started() {
  if (pid_ > 0 && !reaped_) {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  std::error_code ignored;
  fs::remove_all(folder_, ignored);
}

int Started::wait(std::chrono::milliseconds timeout) {
  int status = 0;
  if (!eventually([&] { return waitpid(pid_, &status, WNOHANG) == pid_; }, timeout)) return -1;
  reaped_ = true;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

void Started::send(int signal) const { kill(pid_, signal); }

std::string Started::output() const { return contents(folder_ / "output"); }

Launched::Launched(const std::vector<std::string>& words, const std::vector<std::string>& before) {
  auto command = before;
  command.push_back(beside("fleetrun"));
  if (words.empty() || !words.front().starts_with("--log_dir"))
    command.push_back("--log_dir=" + (folder() / "log").string());
  command.insert(command.end(), words.begin(), words.end());
  start(std::move(command));
}

std::string Launched::log(int rank) const {
  return contents(folder() / "log" / format("workerlog.{}", rank));
}

std::string beside(const std::string& program) {
  return (fs::read_symlink("/proc/self/exe").parent_path() / program).string();
}

std::string contents(const fs::path& file) {
  std::ostringstream text;
  text << std::ifstream(file).rdbuf();
  return text.str();
}

bool eventually(const std::function<bool()>& condition, std::chrono::milliseconds timeout) {
  const auto deadline = Clock::now() + patient(timeout);
  while (!condition()) {
    if (Clock::now() >= deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return true;
}

bool is_gone(pid_t pid) {
  const auto stat = contents(format("/proc/{}/stat", pid));
  const auto after_name = stat.rfind(')');
  return after_name == std::string::npos || stat.substr(after_name + 2, 1) == "Z";
}

}  // namespace fleet::launch
