// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "fleet/core/options/options.h"

namespace fleet {

struct StrategyCheck;
struct TrainingStack;
class UpdateHook;

namespace optim {
class Optimizer;
}

/// LARS over Momentum: docs/strategies/lars.md.
struct LarsConfigs {
  float lars_coeff = 0.001f;
  float lars_weight_decay = 0.0005f;
  float epsilon = 0;
  std::vector<std::string> exclude_from_weight_decay = {};

  std::string rule = "fleet";
  int log_every = 0;

  bool operator==(const LarsConfigs&) const = default;
};
const FieldList& fields_of(const LarsConfigs*);

void check_lars(StrategyCheck& check);

/// LARS with the rate, momentum, clipping and groups of an optim::Momentum.
std::unique_ptr<optim::Optimizer> lars_over(const optim::Optimizer& momentum,
                                            const LarsConfigs& configs);

/// Prints trust ratios every `log_every` updates; null: never.
std::unique_ptr<UpdateHook> make_lars_log(TrainingStack& stack);

}  // namespace fleet
