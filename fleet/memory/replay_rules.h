#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace fleet::memory {

/// Ops ("mine::route", "aten::bernoulli") that must not be called again: what backward needs of
/// them is kept. For ops with hidden state of their own, which no replay can bring back. Holds for
/// forwards that begin afterwards, in the whole process.
void never_replay(const std::vector<std::string>& ops);
bool may_replay(const std::string& op);

/// What to do about an op that behaves otherwise when it is called again.
inline constexpr std::string_view kHiddenState =
    "its course depends on something hidden: keep its results with memory::never_replay({\"...\"})";

}  // namespace fleet::memory
