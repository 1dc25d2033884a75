// SPDX-License-Identifier: Apache-2.0
#include "tools/fleetrun/process/worker.h"

#include <fcntl.h>
#include <linux/close_range.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <map>

#include "fleet/core/process/descriptor.h"
#include "fleet/core/text/format.h"

#include "tools/fleetrun/process/marked_processes.h"
#include "tools/fleetrun/process/signals.h"

namespace fleet::launch {
namespace {

namespace fs = std::filesystem;

// The launcher's own environment with `changes` on top; an empty value takes a name away.
std::vector<std::string> merged_environment(const Environment& changes,
                                            const std::string& launch_id) {
  std::map<std::string, std::string> merged;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    const auto equals = text.find('=');
    if (equals != std::string::npos) merged[text.substr(0, equals)] = text.substr(equals + 1);
  }
  for (const auto& [name, value] : changes) {
    if (value.empty()) {
      merged.erase(name);
    } else {
      merged[name] = value;
    }
  }
  merged[kLaunchId] = launch_id;
  std::vector<std::string> lines;
  lines.reserve(merged.size());
  for (const auto& [name, value] : merged) lines.push_back(format("{}={}", name, value));
  return lines;
}

std::vector<char*> pointers(std::vector<std::string>& words) {
  std::vector<char*> list;
  list.reserve(words.size() + 1);
  for (auto& word : words) list.push_back(word.data());
  list.push_back(nullptr);
  return list;
}

// Between fork and exec: other threads may have held any lock, so only async-signal-safe calls.
[[noreturn]] void become(const char* file, char* const* words, char* const* environment,
                         int output_fd, int null_fd, int error_fd, pid_t parent,
                         Watchdog& watchdog) {
  setsid();
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(1);  // the launcher died before the line above
  watchdog.watch(getpid());
  for (int signal = 1; signal < NSIG; ++signal) ::signal(signal, SIG_DFL);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  dup2(null_fd, STDIN_FILENO);
  dup2(output_fd, STDOUT_FILENO);
  dup2(output_fd, STDERR_FILENO);
  close_range(3, ~0U, CLOSE_RANGE_CLOEXEC);
  execve(file, words, environment);
  const int error = errno;
  if (write(error_fd, &error, sizeof(error)) < 0) _exit(1);
  _exit(1);
}

}  // namespace

bool ExitStatus::crashed() const { return signal != 0 && signal != SIGABRT; }

std::string ExitStatus::text() const {
  if (signal == 0) return format("exited with code {}", code);
  return format("was ended by signal {} ({}, {})", signal, signal_name(signal), strsignal(signal));
}

Worker::Worker(const Program& program, const Environment& environment, int output_fd,
               Watchdog& watchdog)
    : watchdog_(&watchdog) {
  auto words = program.words;
  auto lines = merged_environment(environment, watchdog.launch_id());
  const auto word_list = pointers(words);
  const auto line_list = pointers(lines);
  const Descriptor null(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  int failure[2];
  if (!null || ::pipe2(failure, O_CLOEXEC) != 0)
    throw Error("fleetrun", format("cannot prepare a process ({})", strerror(errno)));

  const Descriptor reader(failure[0]);
  Descriptor writer(failure[1]);
  const pid_t parent = getpid();
  started_ = std::chrono::steady_clock::now();
  pid_ = ::fork();
  if (pid_ == 0)
    become(program.file.c_str(), word_list.data(), line_list.data(), output_fd, null.get(),
           writer.get(), parent, watchdog);
  const int fork_error = errno;
  writer = Descriptor();
  int error = 0;
  // Ends when exec closes the other side, or with the reason why it did not.
  if (pid_ > 0)
    while (::read(reader.get(), &error, sizeof(error)) < 0 && errno == EINTR) {
    }
  if (pid_ < 0)
    throw Error("fleetrun", format("cannot start another process ({})", strerror(fork_error)),
                "the limit of processes may be reached: see ulimit -u");
  if (error == 0) return;
  reap();
  throw StartError(126, format("{} cannot be executed ({})", program.file, strerror(error)),
                   error == ENOEXEC ? "a script needs a first line such as #!/bin/sh"
                                    : "check that it is a program for this machine");
}

const std::optional<ExitStatus>& Worker::exit_status() {
  if (exit_status_) return exit_status_;
  siginfo_t info{};
  if (waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) != 0 ||
      info.si_pid == 0)
    return exit_status_;
  ended_ = std::chrono::steady_clock::now();
  if (info.si_code == CLD_EXITED) {
    exit_status_ = ExitStatus{.code = info.si_status};
  } else {
    exit_status_ = ExitStatus{.signal = info.si_status};
  }
  return exit_status_;
}

std::chrono::duration<double> Worker::lifetime() const {
  return (exit_status_ ? ended_ : std::chrono::steady_clock::now()) - started_;
}

void Worker::send(int signal) const {
  if (reaped_) return;
  ::kill(-pid_, signal);
  ::kill(-pid_, SIGCONT);
}

void Worker::send_group_broken() const {
  if (reaped_) return;
  sigval about{};
  about.sival_int = kGroupIsBroken;
  for (const pid_t pid : living_in({pid_})) ::sigqueue(pid, SIGTERM, about);
  send(SIGTERM);
}

void Worker::reap() {
  if (reaped_) return;
  reaped_ = true;
  watchdog_->forget(pid_);
  while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

std::vector<pid_t> living_in(const std::vector<pid_t>& groups) {
  std::vector<pid_t> living;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator("/proc", error)) {
    const auto name = entry.path().filename().string();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    std::string stat;
    std::getline(std::ifstream(entry.path() / "stat"), stat);
    // "pid (any text) state parent group ..."
    const auto after_name = stat.rfind(')');
    char state = 0;
    pid_t group = 0;
    if (after_name == std::string::npos ||
        sscanf(stat.c_str() + after_name + 1, " %c %*d %d", &state, &group) != 2)
      continue;
    if (state != 'Z' && state != 'X' &&
        std::find(groups.begin(), groups.end(), group) != groups.end())
      living.push_back(std::stoi(name));
  }
  return living;
}

}  // namespace fleet::launch
