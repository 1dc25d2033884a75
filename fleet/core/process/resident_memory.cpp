// SPDX-License-Identifier: Apache-2.0
#include "fleet/core/process/resident_memory.h"

#include <sys/resource.h>
#include <unistd.h>

#include <fstream>

namespace fleet {

int64_t peak_resident_bytes() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return static_cast<int64_t>(usage.ru_maxrss) * 1024;
}

int64_t resident_bytes() {
  int64_t all = 0, resident = 0;  // in pages
  std::ifstream("/proc/self/statm") >> all >> resident;
  return resident * sysconf(_SC_PAGE_SIZE);
}

}  // namespace fleet
