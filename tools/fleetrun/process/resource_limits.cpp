// SPDX-License-Identifier: Apache-2.0
#include "tools/fleetrun/process/resource_limits.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string_view>

#include "fleet/core/error.h"
#include "fleet/core/text/format.h"
#include "fleet/core/text/plural.h"

#include "tools/fleetrun/nodes/cluster.h"

namespace fleet::launch {
namespace {

namespace fs = std::filesystem;

// Of fleetrun. The store's own (its loop, pipes, listener and client), events of threads, the lock
// of the log folder, and what is open for a moment while a rank starts.
constexpr int64_t kOwnFiles = 32;
constexpr int64_t kFilesPerRank = 2;  // its pipe and its log
constexpr int64_t kConnectionsPerRank =
    4;  // to the store: calls, heartbeat, elastic group, a spare
constexpr int64_t kConnectionsPerNode = 2;  // of the other launchers
constexpr int64_t kOwnThreads = 6;
// Of a rank: its libraries, data, snapshots; for each peer a connection in each of up to 4 groups.
constexpr int64_t kFilesOfRank = 128;
constexpr int64_t kConnectionsPerPeer = 4;
constexpr int64_t kThreadsOfRank = 12;  // beside those that compute

std::string text_of(rlim_t limit) {
  return limit == RLIM_INFINITY ? "unlimited" : format("{}", limit);
}

rlim_t raised(const Need& need, const rlimit& limit, int64_t wanted) {
  const auto most = static_cast<rlim_t>(std::max(need.launcher, wanted));
  if (limit.rlim_cur == RLIM_INFINITY || limit.rlim_cur >= most) return limit.rlim_cur;
  return std::min(most, limit.rlim_max);
}

struct HardLimit {
  std::string_view needed;
  std::string_view ulimit;
  std::string_view of_service;
};

// Below what fleetrun itself needs: an error. Below what the ranks may need: a warning, with what
// they do.
template <typename RanksNeed>
Decision decide(const Need& need, const rlimit& limit, const JobSize& size, const HardLimit& hard,
                int64_t advised, RanksNeed&& ranks_need) {
  if (limit.rlim_max < static_cast<rlim_t>(need.launcher))
    throw UsageError(
        "fleetrun",
        format("fleetrun needs {} {} {} ({}), and the hard limit is {}", need.launcher, hard.needed,
               plural(size.local_ranks, "rank"), need.breakdown, limit.rlim_max),
        format("raise the hard limit to {} ({} as root, /etc/security/limits.conf, or "
               "{} of a service), or start fewer ranks",
               advised, hard.ulimit, hard.of_service));
  Decision decision{.soft = raised(need, limit, need.rank), .warning = {}};
  if (limit.rlim_max < static_cast<rlim_t>(need.rank))
    decision.warning =
        format("{}, and the hard limit is {} ({})", ranks_need(), limit.rlim_max, hard.ulimit);
  return decision;
}

int64_t entries(const fs::path& folder) {
  std::error_code error;
  const fs::directory_iterator all(folder, error);
  return std::distance(begin(all), end(all));
}

template <typename Measure, typename Decide>
std::string raise(decltype(RLIMIT_NOFILE) kind, Measure&& need, Decide&& decide,
                  const JobSize& size) {
  rlimit limit{};
  if (::getrlimit(kind, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return "";
  const auto decision = decide(need(), limit, size);
  if (decision.soft == limit.rlim_cur) return decision.warning;
  limit.rlim_cur = decision.soft;
  if (::setrlimit(kind, &limit) != 0)
    throw UsageError("fleetrun", format("cannot raise a limit to {} ({})", text_of(decision.soft),
                                        std::strerror(errno)));
  return decision.warning;
}

}  // namespace

int64_t threads_of_user() {
  int64_t count = 0;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator("/proc", error)) {
    const auto name = entry.path().filename().string();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    struct stat about {};
    if (::stat(entry.path().c_str(), &about) == 0 && about.st_uid == ::getuid())
      count += entries(entry.path() / "task");
  }
  return count;
}

bool is_process_limit_enforced() {
  if (::getuid() == 0) return false;
  constexpr int kAdmin = 21, kResource = 24;  // CAP_SYS_ADMIN, CAP_SYS_RESOURCE
  std::ifstream status("/proc/self/status");
  const std::string label = "CapEff:";
  for (std::string line; std::getline(status, line);) {
    if (!line.starts_with(label)) continue;
    const uint64_t capabilities = std::stoull(line.substr(label.size()), nullptr, 16);
    return (capabilities >> kAdmin & 1) == 0 && (capabilities >> kResource & 1) == 0;
  }
  return true;
}

Need files_needed(const JobSize& size, int64_t open_now) {
  const int64_t own = std::max(open_now + kOwnFiles / 2, kOwnFiles);
  const int64_t outputs = kFilesPerRank * size.local_ranks;
  Need need{.launcher = own + outputs,
            .rank = kFilesOfRank + kConnectionsPerPeer * (size.world_size - 1),
            .breakdown = format("{} of its own, {} for the output of {}", own, outputs,
                                plural(size.local_ranks, "rank"))};
  if (size.hosts_store) {
    const int64_t connections =
        kConnectionsPerRank * size.world_size + kConnectionsPerNode * (size.nodes - 1);
    need.launcher += connections;
    need.breakdown += format(", {} for connections of {} to the store", connections,
                             plural(size.world_size, "rank"));
  }
  return need;
}

Need processes_needed(const JobSize& size, int64_t running_now, int threads_per_rank) {
  return {.launcher = running_now + kOwnThreads + size.local_ranks,
          .rank = running_now + kOwnThreads +
                  size.local_ranks * static_cast<int64_t>(threads_per_rank + kThreadsOfRank),
          .breakdown = format("{} that run already, {} of its own, {}", running_now, kOwnThreads,
                              plural(size.local_ranks, "rank"))};
}

Decision decide_files(const Need& need, rlimit limit, const JobSize& size) {
  constexpr HardLimit kFiles{
      .needed = "open files for", .ulimit = "ulimit -Hn", .of_service = "LimitNOFILE"};
  return decide(need, limit, size, kFiles, need.launcher, [&] {
    return format("a rank may need {} open files ({} connections to each of {} peers and {} more)",
                  need.rank, kConnectionsPerPeer, size.world_size - 1, kFilesOfRank);
  });
}

Decision decide_processes(const Need& need, rlimit limit, const JobSize& size) {
  constexpr HardLimit kProcesses{.needed = "processes and threads of this user for",
                                 .ulimit = "ulimit -Hu",
                                 .of_service = "LimitNPROC"};
  return decide(need, limit, size, kProcesses, need.rank, [&] {
    return format("{} may need {} processes and threads together with what this user runs already",
                  plural(size.local_ranks, "rank"), need.rank);
  });
}

Decision decide_group(const Need& need, const PidsLimit& limit, const JobSize& size) {
  if (limit.most < need.launcher)
    throw UsageError(
        "fleetrun",
        format(
            "fleetrun needs {} processes and threads for {} ({}), and control group {} allows {}",
            need.launcher, plural(size.local_ranks, "rank"), need.breakdown, limit.group,
            limit.most),
        format("raise its pids.max to {} (docker --pids-limit, TasksMax of a service), or start "
               "fewer ranks",
               need.rank));
  Decision decision;
  if (limit.most < need.rank)
    decision.warning = format(
        "{} may need {} processes and threads together with what runs already, and control "
        "group {} allows {} (pids.max)",
        plural(size.local_ranks, "rank"), need.rank, limit.group, limit.most);
  return decision;
}

std::vector<std::string> raise_limits(const JobSize& size) {
  std::vector<std::string> warnings = {raise(
      RLIMIT_NOFILE, [&] { return files_needed(size, entries("/proc/self/fd")); }, decide_files,
      size)};
  const int threads = threads_per_rank(size.local_ranks);
  if (const auto group = pids_limit()) {
    warnings.push_back(
        decide_group(processes_needed(size, group->used, threads), *group, size).warning);
  }
  if (is_process_limit_enforced()) {
    warnings.push_back(raise(
        RLIMIT_NPROC, [&] { return processes_needed(size, threads_of_user(), threads); },
        decide_processes, size));
  }
  std::erase(warnings, "");
  return warnings;
}

}  // namespace fleet::launch
