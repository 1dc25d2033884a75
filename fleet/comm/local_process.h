#pragma once

#include <cstdint>
#include <string>

namespace fleet::comm {

/// Equal on processes that share a kernel and a pid namespace.
std::string host_id();

/// What the kernel says of a process.
struct ProcessStat {
  char state = '\0';     // as in ps: Z a zombie, T stopped; '\0': there is none of that number
  uint64_t started = 0;  // tells it from an earlier one with the same number

  bool has_ended() const { return state == '\0' || state == 'Z' || state == 'X'; }
};
ProcessStat process_stat(int pid);

}  // namespace fleet::comm
