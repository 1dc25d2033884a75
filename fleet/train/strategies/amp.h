// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "fleet/core/options/options.h"

namespace fleet {

struct StrategyCheck;

/// Mixed precision: docs/strategies/amp.md. MixedPrecision acts on it.
struct AmpConfigs {
  float init_loss_scaling = 32768;
  int incr_every_n_steps = 1000;
  int decr_every_n_nan_or_inf = 2;
  float incr_ratio = 2;
  float decr_ratio = 0.8f;
  bool use_dynamic_loss_scaling = true;
  std::vector<std::string> custom_white_list = {};
  std::vector<std::string> custom_black_list = {};
  bool use_pure_bf16 = false;

  std::string dtype = "bf16";
  int max_skips_in_a_row = 50;

  bool operator==(const AmpConfigs&) const = default;
};
const FieldList& fields_of(const AmpConfigs*);

void check_amp(StrategyCheck& check);

}  // namespace fleet
