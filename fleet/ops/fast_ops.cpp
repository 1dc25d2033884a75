// SPDX-License-Identifier: Apache-2.0
#include "fleet/ops/fast_ops.h"

#include <algorithm>

#include "fleet/core/error.h"
#include "fleet/core/text/format.h"
#include "fleet/core/text/nearest_name.h"
#include "fleet/ops/fast_op_rules.h"

namespace fleet {

FastOps::FastOps(const FastOpsOptions& options) {
  static_assert(kFastOpNames.size() == kOps);
  std::vector<std::string> problems;
  for (const auto& name : options.exclude) {
    const auto place = std::ranges::find(kFastOpNames, name);
    if (place == kFastOpNames.end()) {
      problems.push_back(
          format("exclude: '{}' is not replaced anyway{}", name, did_you_mean(name, op_names())));
    } else {
      entries_[static_cast<size_t>(place - kFastOpNames.begin())].is_excluded = true;
    }
  }
  if (problems.empty()) return;
  std::string names;
  for (const auto* const name : kFastOpNames)
    names += format("{}{}", names.empty() ? "" : ", ", name);
  throw UsageError::all("fast_ops", "these options do not work:", problems,
                        format("what is replaced: {}", names));
}

std::vector<std::string> FastOps::op_names() { return {kFastOpNames.begin(), kFastOpNames.end()}; }

std::vector<FastOps::Count> FastOps::counts() const {
  std::vector<Count> result;
  for (size_t i = 0; i < kOps; ++i) {
    const auto& entry = entries_[i];
    if (entry.replaced + entry.kept == 0) continue;
    result.push_back({kFastOpNames[i], entry.replaced, entry.kept, entry.why});
  }
  return result;
}

std::string FastOps::summary() const {
  std::string replaced, kept;
  for (const auto& count : counts()) {
    if (count.replaced > 0) {
      replaced += format("{}{} {}", replaced.empty() ? "" : ", ", count.replaced, count.op);
    }
    if (count.kept > 0) {
      kept += format("{}{} {} ({})", kept.empty() ? "" : ", ", count.kept, count.op, count.why);
    }
  }
  auto text = replaced.empty() ? std::string("nothing was replaced")
                               : format("{} by Fleet's ops", replaced);
  if (!kept.empty()) text += format("; {} by LibTorch's", kept);
  return text;
}

}  // namespace fleet
