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

/// LAMB over Adam or AdamW: docs/strategies/lamb.md.
struct LambConfigs {
  float lamb_weight_decay = 0.01f;
  std::vector<std::string> exclude_from_weight_decay = {};

  std::string rule = "fleet";
  int log_every = 0;

  bool operator==(const LambConfigs&) const = default;
};
const FieldList& fields_of(const LambConfigs*);

void check_lamb(StrategyCheck& check);

/// LAMB with the rate, betas, clipping and groups of an optim::Adam or AdamW. `lamb_weight_decay`
/// becomes the one in force.
std::unique_ptr<optim::Optimizer> lamb_over(const optim::Optimizer& adam, LambConfigs& configs);

/// Which decay LAMB over AdamW has: AdamW's own, unless only `lamb_weight_decay` was set. One that
/// has its default value counts as not set; two that were set, to different values, are a conflict.
enum class LambDecay { kAdamW, kConfigs, kConflict };
LambDecay lamb_decay(double adamw_weight_decay, const LambConfigs& configs);

/// Prints trust ratios every `log_every` updates; null: never.
std::unique_ptr<UpdateHook> make_lamb_log(TrainingStack& stack);

}  // namespace fleet
