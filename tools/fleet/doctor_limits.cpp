// SPDX-License-Identifier: Apache-2.0
#include "tools/fleet/doctor_limits.h"

#include <sys/resource.h>

#include <algorithm>
#include <limits>

#include "fleet/core/process/process_setup.h"
#include "fleet/core/text/format.h"

#include "tools/fleetrun/process/pids_limit.h"
#include "tools/fleetrun/process/resource_limits.h"

namespace fleet::tool {
namespace {

using State = Finding::State;

constexpr int64_t kUnlimited = std::numeric_limits<int64_t>::max();

launch::JobSize on_one_machine(int64_t ranks) {
  return {.local_ranks = static_cast<int>(ranks), .world_size = static_cast<int>(ranks)};
}

launch::Need files_needed(int64_t ranks) { return launch::files_needed(on_one_machine(ranks), 0); }

int64_t files_for(int64_t ranks) {
  const auto need = files_needed(ranks);
  return std::max(need.launcher, need.rank);
}

// The most ranks that get by with so many, by bisection.
int64_t ranks_with_files(int64_t files) {
  int64_t enough = 0, too_many = std::min<int64_t>(files, 1 << 30) + 1;
  while (too_many - enough > 1) {
    const auto ranks = (enough + too_many) / 2;
    (files_for(ranks) <= files ? enough : too_many) = ranks;
  }
  return enough;
}

int64_t number_of(rlim_t limit) {
  return limit == RLIM_INFINITY || limit > static_cast<rlim_t>(kUnlimited)
             ? kUnlimited
             : static_cast<int64_t>(limit);
}

Limit limit_of(__rlimit_resource resource) {
  rlimit limit{};
  if (::getrlimit(resource, &limit) != 0) return {kUnlimited, kUnlimited};
  return {number_of(limit.rlim_cur), number_of(limit.rlim_max)};
}

std::string text_of(int64_t limit) {
  return limit == kUnlimited ? "unlimited" : format("{}", limit);
}

std::string ranks_text(int64_t ranks) { return format("{} rank{}", ranks, ranks == 1 ? "" : "s"); }

}  // namespace

Finding descriptors_finding(const Limit& limit, int64_t ranks) {
  auto found = format("{} open files in a process", text_of(limit.soft));
  if (limit.hard != limit.soft) found += format(" (up to {})", text_of(limit.hard));
  if (limit.hard != kUnlimited) {
    found += format(", enough for {} on a machine", ranks_text(ranks_with_files(limit.hard)));
  }
  const auto needed = files_for(ranks);
  if (limit.hard < files_needed(ranks).launcher) {
    return {State::kProblem, "descriptors", found,
            format("{} need {}: raise the hard limit (ulimit -Hn as root, LimitNOFILE= of the "
                   "service, /etc/security/limits.conf), or start fewer",
                   ranks_text(ranks), needed)};
  }
  if (limit.soft < needed) {
    return {State::kAdvice, "descriptors", found,
            format("{} usually need {}: ulimit -n {} where ranks are started without fleetrun, "
                   "which raises it as far as it may",
                   ranks_text(ranks), needed, needed)};
  }
  return {State::kOk, "descriptors", found};
}

Finding descriptors_finding(int64_t ranks) {
  return descriptors_finding(limit_of(RLIMIT_NOFILE), ranks);
}

Finding processes_finding(const Limit& limit, int64_t used, int64_t ranks, int64_t threads_each,
                          const std::string& root) {
  int64_t left = limit.hard == kUnlimited ? kUnlimited : limit.hard - used;
  std::string source = "the user's limit (ulimit -u)";
  std::string fix = "raise it with ulimit -u, or in /etc/security/limits.conf";
  if (const auto group = launch::pids_limit(root); group && group->room() < left) {
    left = group->room();
    source = format("control group {}", group->group);
    fix = "raise its pids.max (docker --pids-limit, TasksMax= of the service)";
  }
  if (left == kUnlimited) return {State::kOk, "processes", "no limit"};
  const auto needed = [&](int64_t count) {
    return launch::processes_needed(on_one_machine(count), 0, static_cast<int>(threads_each)).rank;
  };
  const auto of_launcher = needed(0);
  const auto each = needed(1) - of_launcher;
  left = std::max<int64_t>(left - of_launcher, 0);
  const auto found = format("{} more processes and threads ({}), enough for {} of {} threads", left,
                            source, ranks_text(left / each), each);
  if (left / each < ranks) {
    return {State::kProblem, "processes", found,
            format("{} need {}: {}", ranks_text(ranks), ranks * each, fix)};
  }
  return {State::kOk, "processes", found};
}

Finding processes_finding(int64_t ranks, const std::string& root) {
  auto limit = limit_of(RLIMIT_NPROC);
  if (!launch::is_process_limit_enforced()) limit = {kUnlimited, kUnlimited};
  const auto threads = std::max<int64_t>(1, available_cores(root) / std::max<int64_t>(ranks, 1));
  return processes_finding(limit, limit.hard == kUnlimited ? 0 : launch::threads_of_user(), ranks,
                           threads, root);
}

}  // namespace fleet::tool
