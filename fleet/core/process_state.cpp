#include "fleet/core/process_state.h"

#include <cstdint>
#include <fstream>
#include <string>

#include "fleet/core/format.h"

namespace fleet {

// The letter follows the last ')': a program's name may hold anything.
char process_state(int pid) {
  std::ifstream file(format("/proc/{}/stat", pid));
  std::string text;
  std::getline(file, text);
  const auto close = text.rfind(") ");
  return close == std::string::npos || close + 2 >= text.size() ? '\0' : text[close + 2];
}

bool is_process_stopped(int pid) {
  const char state = process_state(pid);
  return state == 'T' || state == 't';
}

bool handles_signal(int pid, int signal) {
  std::ifstream file(format("/proc/{}/status", pid));
  const std::string label = "SigCgt:";
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with(label)) continue;
    const uint64_t caught = std::stoull(line.substr(label.size()), nullptr, 16);
    return (caught >> (signal - 1) & 1) != 0;
  }
  return false;
}

}  // namespace fleet
