// SPDX-License-Identifier: Apache-2.0
#include "fleet/core/process/process_state.h"

#include <fstream>
#include <sstream>
#include <string>

#include "fleet/core/text/format.h"
#include "fleet/core/text/printable.h"

namespace fleet {

ProcessState process_state(int pid) {
  std::ifstream file(format("/proc/{}/stat", pid));
  std::string text;
  std::getline(file, text);
  // "pid (name) letter parent ...", where the name may hold anything; the start is the 20th word
  // behind it.
  const auto close = text.rfind(") ");
  if (close == std::string::npos) return {};
  std::istringstream words(text.substr(close + 2));
  ProcessState state;
  words >> state.letter;
  std::string skipped;
  constexpr int kBetween = 18;
  for (int i = 0; i < kBetween; ++i) words >> skipped;
  words >> state.started;
  return state;
}

std::string described_process(int pid) {
  std::string name;
  std::ifstream file(format("/proc/{}/comm", pid));
  std::getline(file, name);
  return name.empty() ? format("pid {}", pid) : format("pid {} ({})", pid, printable(name));
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
