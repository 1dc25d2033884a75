#include "fleet/core/resident_memory.h"

#include <sys/resource.h>

namespace fleet {

int64_t peak_resident_bytes() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return static_cast<int64_t>(usage.ru_maxrss) * 1024;
}

}  // namespace fleet
