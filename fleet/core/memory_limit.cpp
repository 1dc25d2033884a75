#include "fleet/core/memory_limit.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>
#include <vector>

#include "fleet/core/format.h"

namespace fleet {
namespace {

namespace fs = std::filesystem;

enum class Version { kOne, kTwo };

/// The group of this process in the hierarchy that limits memory.
struct Group {
  Version version;
  std::string path;  // "/a/b"
};

/// Where such a hierarchy is mounted, and which of its groups is the root of the mount.
struct Mount {
  Version version;
  fs::path place;
  std::string group;  // "/" unless a part of the hierarchy is mounted
};

bool holds(const std::string& list, const std::string& word) {
  std::istringstream words(list);
  for (std::string one; std::getline(words, one, ',');) {
    if (one == word) return true;
  }
  return false;
}

// Lines "0::/a/b" (version 2) and "5:cpu,memory:/a/b" (version 1). A machine may have both.
std::vector<Group> groups_of_process(const fs::path& root) {
  std::vector<Group> groups;
  std::ifstream file(root / "proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    const auto first = line.find(':');
    const auto second = line.find(':', first + 1);
    if (first == line.npos || second == line.npos) continue;
    const auto controllers = line.substr(first + 1, second - first - 1);
    if (controllers.empty()) {
      groups.push_back({Version::kTwo, line.substr(second + 1)});
    } else if (holds(controllers, "memory")) {
      groups.push_back({Version::kOne, line.substr(second + 1)});
    }
  }
  return groups;
}

// Of /proc/self/mountinfo: "ID PARENT DEVICE GROUP PLACE OPTIONS [TAGS] - TYPE SOURCE OPTIONS".
std::vector<Mount> mounts(const fs::path& root) {
  std::vector<Mount> found;
  std::ifstream file(root / "proc/self/mountinfo");
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string skipped, group, place;
    words >> skipped >> skipped >> skipped >> group >> place;
    const auto dash = line.find(" - ");
    if (dash == line.npos || !place.starts_with('/')) continue;
    std::istringstream behind(line.substr(dash + 3));
    std::string type, source, options;
    behind >> type >> source >> options;
    const auto at = root / place.substr(1);
    if (type == "cgroup2") found.push_back({Version::kTwo, at, group});
    if (type == "cgroup" && holds(options, "memory")) found.push_back({Version::kOne, at, group});
  }
  if (found.empty()) {
    found.push_back({Version::kTwo, root / "sys/fs/cgroup", "/"});
    found.push_back({Version::kOne, root / "sys/fs/cgroup/memory", "/"});
  }
  return found;
}

// "max" is no number.
std::optional<int64_t> number_in(const fs::path& file) {
  int64_t bytes = 0;
  if (std::ifstream(file) >> bytes && bytes > 0) return bytes;
  return {};
}

// The group as a path below the mount; empty for the root of the mount, and for a group that the
// mount does not show.
fs::path below(const Mount& mount, const Group& group) {
  std::string path = group.path;
  if (mount.group != "/") {
    if (!path.starts_with(mount.group)) return {};
    path.erase(0, mount.group.size());
  }
  const auto relative = fs::path(path).relative_path().lexically_normal();
  const bool leaves = !relative.empty() && *relative.begin() == "..";
  if (leaves || relative == "." || !fs::exists(mount.place / relative)) return {};
  return relative;
}

void consider(MemoryLimit& smallest, std::optional<int64_t> bytes, const fs::path& group) {
  if (!bytes || *bytes >= smallest.bytes) return;
  smallest = {*bytes, format("control group /{}", group.string())};
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
  const auto mounted = mounts(root);
  for (const auto& group : groups_of_process(root)) {
    for (const auto& mount : mounted) {
      if (mount.version != group.version) continue;
      for (auto path = below(mount, group);; path = path.parent_path()) {
        const auto folder = mount.place / path;
        if (mount.version == Version::kTwo) {
          consider(smallest, number_in(folder / "memory.max"), path);
          consider(smallest, number_in(folder / "memory.high"), path);
        } else {
          consider(smallest, number_in(folder / "memory.limit_in_bytes"), path);
        }
        if (path.empty()) break;
      }
    }
  }
  return smallest;
}

}  // namespace fleet
