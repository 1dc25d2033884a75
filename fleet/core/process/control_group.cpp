// SPDX-License-Identifier: Apache-2.0
#include "fleet/core/process/control_group.h"

#include <fstream>
#include <sstream>

namespace fleet {
namespace {

namespace fs = std::filesystem;

/// The group of this process in one hierarchy.
struct Membership {
  int version;
  std::string path;  // "/a/b"
};

/// Where such a hierarchy is mounted, and which of its groups is the root of the mount.
struct Mount {
  int version;
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

// Lines "0::/a/b" (version 2) and "5:cpu,memory:/a/b" (version 1).
std::vector<Membership> memberships(const std::string& controller, const fs::path& root) {
  std::vector<Membership> found;
  std::ifstream file(root / "proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    const auto first = line.find(':');
    const auto second = line.find(':', first + 1);
    if (first == line.npos || second == line.npos) continue;
    const auto controllers = line.substr(first + 1, second - first - 1);
    if (controllers.empty()) {
      found.push_back({2, line.substr(second + 1)});
    } else if (holds(controllers, controller)) {
      found.push_back({1, line.substr(second + 1)});
    }
  }
  return found;
}

// Of /proc/self/mountinfo: "ID PARENT DEVICE GROUP PLACE OPTIONS [TAGS] - TYPE SOURCE OPTIONS".
std::vector<Mount> mounts(const std::string& controller, const fs::path& root) {
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
    if (type == "cgroup2") found.push_back({2, at, group});
    if (type == "cgroup" && holds(options, controller)) found.push_back({1, at, group});
  }
  if (found.empty()) {
    found.push_back({2, root / "sys/fs/cgroup", "/"});
    found.push_back({1, root / "sys/fs/cgroup" / controller, "/"});
  }
  return found;
}

// The group as a path below the mount; empty for the root of the mount, and for a group that the
// mount does not show.
fs::path below(const Mount& mount, const Membership& membership) {
  std::string path = membership.path;
  if (mount.group != "/") {
    if (!path.starts_with(mount.group)) return {};
    path.erase(0, mount.group.size());
  }
  const auto relative = fs::path(path).relative_path().lexically_normal();
  const bool leaves = !relative.empty() && *relative.begin() == "..";
  if (leaves || relative == "." || !fs::exists(mount.place / relative)) return {};
  return relative;
}

}  // namespace

std::vector<ControlGroup> control_groups(const std::string& controller, const std::string& root) {
  std::vector<ControlGroup> groups;
  const auto mounted = mounts(controller, root);
  for (const auto& membership : memberships(controller, root)) {
    for (const auto& mount : mounted) {
      if (mount.version != membership.version) continue;
      for (auto path = below(mount, membership);; path = path.parent_path()) {
        groups.push_back({mount.version, mount.place / path, "/" + path.string()});
        if (path.empty()) break;
      }
    }
  }
  return groups;
}

}  // namespace fleet
