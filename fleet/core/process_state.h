#pragma once

namespace fleet {

/// The letter that the kernel has for the state of a process of this machine (/proc/PID/stat): 'T'
/// or 't' when it is stopped, 'Z' when it has ended, and '\0' when there is none.
char process_state(int pid);

/// Whether it is stopped, by SIGSTOP or a debugger.
bool is_process_stopped(int pid);

/// Whether it has a handler for that signal.
bool handles_signal(int pid, int signal);

}  // namespace fleet
