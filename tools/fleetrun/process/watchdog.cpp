// SPDX-License-Identifier: Apache-2.0
#include "tools/fleetrun/process/watchdog.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <set>

#include "fleet/core/error.h"
#include "fleet/core/text/format.h"

#include "tools/fleetrun/process/marked_processes.h"

namespace fleet::launch {
namespace {

// A positive number adds a group, a negative one removes it. Writes of this size are atomic.
using Message = pid_t;

constexpr auto kKillWait = std::chrono::seconds(5);

[[noreturn]] void guard(int pipe, const std::string& launch_id) {
  setsid();  // out of reach of the terminal's Ctrl-C
  prctl(PR_SET_NAME, "fleetrun-guard");
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGPIPE}) ::signal(signal, SIG_IGN);
  // A reader of fleetrun's output must see end-of-file when fleetrun ends.
  const int null = ::open("/dev/null", O_RDWR);
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) ::dup2(null, fd);

  std::set<pid_t> groups;
  Message message = 0;
  while (true) {
    const auto got = ::read(pipe, &message, sizeof(message));
    if (got < 0 && errno == EINTR) continue;
    if (got != static_cast<ssize_t>(sizeof(message))) break;
    if (message > 0) {
      groups.insert(message);
    } else {
      groups.erase(-message);
    }
  }
  for (const pid_t group : groups) ::kill(-group, SIGKILL);
  kill_marked(launch_id, kKillWait);
  _exit(0);
}

void send(int pipe, Message message) {
  while (::write(pipe, &message, sizeof(message)) < 0 && errno == EINTR) {
  }
}

}  // namespace

Watchdog::Watchdog() : launch_id_(new_launch_id()) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0)
    throw Error("fleetrun", format("cannot make a pipe ({})", std::strerror(errno)));
  pid_ = ::fork();
  if (pid_ < 0) throw Error("fleetrun", format("cannot fork ({})", std::strerror(errno)));
  if (pid_ == 0) {
    ::close(ends[1]);
    guard(ends[0], launch_id_);
  }
  ::close(ends[0]);
  pipe_ = Descriptor(ends[1]);
}

Watchdog::~Watchdog() {
  pipe_ = Descriptor();  // which ends the process
  while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

void Watchdog::watch(pid_t group) { send(pipe_.get(), group); }

void Watchdog::forget(pid_t group) { send(pipe_.get(), -group); }

}  // namespace fleet::launch
