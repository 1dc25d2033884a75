#include "tools/fleetrun/watchdog.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <set>

#include "fleet/core/error.h"
#include "fleet/core/format.h"

namespace fleet::launch {
namespace {

// A positive number enters a group, a negative one strikes it off. Writes of this size are whole.
using Message = pid_t;

[[noreturn]] void guard(int pipe) {
  setsid();  // out of reach of the terminal's Ctrl-C
  prctl(PR_SET_NAME, "fleetrun-guard");
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGPIPE}) ::signal(signal, SIG_IGN);
  // Whoever reads fleetrun's output must see its end when fleetrun ends.
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
  _exit(0);
}

void send(int pipe, Message message) {
  while (::write(pipe, &message, sizeof(message)) < 0 && errno == EINTR) {
  }
}

}  // namespace

Watchdog::Watchdog() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0)
    throw Error("fleetrun", format("cannot make a pipe ({})", std::strerror(errno)));
  pid_ = ::fork();
  if (pid_ < 0) throw Error("fleetrun", format("cannot fork ({})", std::strerror(errno)));
  if (pid_ == 0) {
    ::close(ends[1]);
    guard(ends[0]);
  }
  ::close(ends[0]);
  pipe_ = ends[1];
}

Watchdog::~Watchdog() {
  ::close(pipe_);
  while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

void Watchdog::watch(pid_t group) { send(pipe_, group); }

void Watchdog::forget(pid_t group) { send(pipe_, -group); }

}  // namespace fleet::launch
