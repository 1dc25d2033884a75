// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/resource.h>

#include <cstdint>
#include <string>
#include <vector>

#include "tools/fleetrun/process/pids_limit.h"

namespace fleet::launch {

/// The size of a job, on which its limits depend.
struct JobSize {
  int local_ranks = 1;
  int world_size = 1;
  int nodes = 1;
  bool hosts_store = true;
};

/// How much of a resource a job needs.
struct Need {
  int64_t launcher = 0;   // less is refused
  int64_t rank = 0;       // usual need of a training program; less is a warning
  std::string breakdown;  // of `launcher`
};

/// Open files: those of fleetrun with its store, and those of one rank. `open_now` are open
/// already.
Need files_needed(const JobSize& size, int64_t open_now);
/// Processes and threads: `running_now` of them already. `rank` is for all ranks here.
Need processes_needed(const JobSize& size, int64_t running_now, int threads_per_rank);

/// Processes and threads of this user, as RLIMIT_NPROC counts them.
int64_t threads_of_user();
/// False for root and for processes with CAP_SYS_ADMIN or CAP_SYS_RESOURCE: the kernel does not
/// apply RLIMIT_NPROC to them.
bool is_process_limit_enforced();

/// The new value of a limit.
struct Decision {
  rlim_t soft = 0;      // to be set
  std::string warning;  // empty: none
};
/// Throws UsageError where the hard limit is below what fleetrun needs.
Decision decide_files(const Need& need, rlimit limit, const JobSize& size);
Decision decide_processes(const Need& need, rlimit limit, const JobSize& size);

/// The same for a control group, whose limit cannot be raised from inside.
Decision decide_group(const Need& need, const PidsLimit& limit, const JobSize& size);

/// Raises the soft limits of open files and processes as far as this job needs, or throws
/// UsageError, after which there is no restart. Ranks inherit the raised limits: each of them has
/// connections to all its peers. Returns warnings for the user.
std::vector<std::string> raise_limits(const JobSize& size);

}  // namespace fleet::launch
