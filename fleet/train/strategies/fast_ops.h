// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "fleet/core/options/options.h"

namespace fleet {

struct FastOpsOptions;
struct StrategyCheck;

/// Fleet's ops in place of LibTorch's: docs/strategies/fast_ops.md. FastOps acts on it.
struct FastOpsConfigs {
  std::vector<std::string> exclude = {};

  bool operator==(const FastOpsConfigs&) const = default;
};
const FieldList& fields_of(const FastOpsConfigs*);

void check_fast_ops(StrategyCheck& check);

FastOpsOptions fast_ops_options(const FastOpsConfigs& configs);

}  // namespace fleet
