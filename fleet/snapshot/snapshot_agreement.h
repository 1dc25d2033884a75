// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "fleet/comm/communicator.h"

namespace fleet {

/// What went wrong on a rank.
struct RankFailure {
  int rank = 0;
  std::string text;  // of its exception
};

/// What went wrong on any rank, by rank, the same on all; empty: nothing. `own`: on this one,
/// empty: nothing. All ranks call it. Costs one small sum where nothing did.
std::vector<RankFailure> gather_failures(comm::Communicator& comm, const std::string& own,
                                         std::string_view what);

/// Runs `work` on all ranks, and throws on all of them when it throws on any: there its own
/// exception, elsewhere its text with the rank, as a UsageError where it was one. Returns the
/// largest number that `work` gave on any rank.
///
///   run_on_all_ranks(comm, "a folder", [&] { if (comm.index() == 0) check(); return 0; });
int64_t run_on_all_ranks(comm::Communicator& comm, std::string_view what,
                         const std::function<int64_t()>& work);

/// An error's text in one line, without its area: what happened, and the fix if there is one.
std::string summary_line(const std::string& text);

}  // namespace fleet
