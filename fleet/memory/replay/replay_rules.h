// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace fleet::memory {

/// Ops ("mine::route", "aten::bernoulli") that must not be replayed: what backward needs of them is
/// kept. For ops with hidden state of their own, which no replay can restore. Applies to forwards
/// that begin afterwards, in the whole process.
void never_replay(const std::vector<std::string>& ops);
bool may_replay(const std::string& op);

/// The fix for an op that gives another result when it is replayed.
inline constexpr std::string_view kHiddenState =
    "it has hidden state: keep its results with memory::never_replay({\"...\"})";

}  // namespace fleet::memory
