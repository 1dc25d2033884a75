// SPDX-License-Identifier: Apache-2.0
#include "fleet/core/process/memory_limit.h"

#include <unistd.h>

#include <fstream>
#include <sstream>

#include "fleet/core/process/control_group.h"
#include "fleet/core/text/format.h"

namespace fleet {
namespace {

namespace fs = std::filesystem;

// "max" is no number.
void consider(MemoryLimit& smallest, const ControlGroup& group, const char* file) {
  int64_t bytes = 0;
  if (!(std::ifstream(group.folder / file) >> bytes) || bytes <= 0) return;
  if (bytes < smallest.bytes) smallest = {bytes, format("control group {}", group.name)};
}

int64_t machine_bytes(const fs::path& root) {
  std::ifstream file(root / "proc/meminfo");
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string name;
    int64_t kib = 0;
    if (words >> name >> kib && name == "MemTotal:" && kib > 0) return kib * 1024;
  }
  return static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGE_SIZE);
}

}  // namespace

MemoryLimit memory_limit(const std::string& root) {
  MemoryLimit smallest{machine_bytes(root), "this machine"};
  for (const auto& group : control_groups("memory", root)) {
    if (group.version == 2) {
      consider(smallest, group, "memory.max");
      consider(smallest, group, "memory.high");
    } else {
      consider(smallest, group, "memory.limit_in_bytes");
    }
  }
  return smallest;
}

}  // namespace fleet
