// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace fleet::comm {

/// The hosts of a list as Slurm writes them (SLURM_STEP_NODELIST, `sinfo`), in its order: any
/// number of brackets in a name, ranges with leading zeros, text after a bracket. An Error shows
/// the list and the position.
///
///   expand_host_list("gpu[01-02]-ib,login");   // gpu01-ib, gpu02-ib, login
///   expand_host_list("r[1-2]n[9-10]");         // r1n9, r1n10, r2n9, r2n10
std::vector<std::string> expand_host_list(std::string_view list);

/// The numbers of a list as Slurm writes tasks per node: "4(x2),3" gives 4, 4, 3.
std::vector<int> expand_task_counts(std::string_view list);

}  // namespace fleet::comm
