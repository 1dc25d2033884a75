// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "fleet/core/options/options.h"

namespace fleet {

struct DistributedStrategy;
struct LocalSgdOptions;
struct StrategyCheck;

/// Local SGD at a fixed interval: docs/strategies/local_sgd.md. LocalSgd acts on it.
struct LocalSgdConfigs {
  int k_steps = 1;
  int begin_step = 1;

  std::string outer = "average";
  double outer_lr = 1;
  double outer_momentum = 0.5;
  std::string optimizer_state = "local";
  bool delayed = false;

  bool operator==(const LocalSgdConfigs&) const = default;
};
const FieldList& fields_of(const LocalSgdConfigs*);

/// Local SGD whose interval adapts: docs/strategies/local_sgd.md.
struct AdaptiveLocalSgdConfigs {
  int init_k_steps = 1;
  int begin_step = 1;

  int max_k_steps = 16;
  std::string formula = "adacomm";
  double loss_smoothing = 0.9;
  std::string outer = "average";
  double outer_lr = 1;
  double outer_momentum = 0.5;
  std::string optimizer_state = "local";
  bool delayed = false;

  bool operator==(const AdaptiveLocalSgdConfigs&) const = default;
};
const FieldList& fields_of(const AdaptiveLocalSgdConfigs*);

/// Of both kinds, and of `auto`.
void check_local_sgd(StrategyCheck& check);

/// What the guide's `auto` makes of the configs at a fixed interval: that is the first one, and
/// `to` keeps what only adaptive intervals have.
void make_adaptive(const LocalSgdConfigs& from, AdaptiveLocalSgdConfigs& to);

/// Of `localsgd` or `adaptive_localsgd`, whichever is on, in a strategy that is resolved and
/// checked.
LocalSgdOptions local_sgd_options(const DistributedStrategy& strategy);

}  // namespace fleet
