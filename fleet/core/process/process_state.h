// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

namespace fleet {

/// What the kernel says of a process of this machine (/proc/PID/stat).
struct ProcessState {
  char letter = '\0';    // as in ps: T stopped, t by a debugger, Z a zombie; '\0': there is none
  uint64_t started = 0;  // tells it from an earlier one with the same number

  bool is_stopped() const { return letter == 'T' || letter == 't'; }
  bool has_ended() const { return letter == '\0' || letter == 'Z' || letter == 'X'; }
};
ProcessState process_state(int pid);

/// "pid 4242 (bash)"; without a name when it has gone.
std::string described_process(int pid);

/// Whether it has a handler for that signal.
bool handles_signal(int pid, int signal);

}  // namespace fleet
