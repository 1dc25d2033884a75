// SPDX-License-Identifier: Apache-2.0
#include "fleet/train/local_sgd_options.h"

#include <array>

#include "fleet/optim/named_rule.h"

namespace fleet {
namespace {

constexpr std::string_view kPage = "docs/strategies/local_sgd.md";
using optim::NamedRule;

constexpr std::array kOuterRules = {
    NamedRule<OuterRule>{"average", OuterRule::kAverage},
    NamedRule<OuterRule>{"slow_momentum", OuterRule::kSlowMomentum},
    NamedRule<OuterRule>{"nesterov", OuterRule::kNesterov},
};
constexpr std::array kStatesAtSync = {
    NamedRule<StateAtSync>{"local", StateAtSync::kLocal},
    NamedRule<StateAtSync>{"average", StateAtSync::kAverage},
    NamedRule<StateAtSync>{"reset", StateAtSync::kReset},
};
constexpr std::array kFormulas = {
    NamedRule<IntervalFormula>{"adacomm", IntervalFormula::kAdacomm},
    NamedRule<IntervalFormula>{"paddle", IntervalFormula::kPaddle},
};

template <typename Configs>
LocalSgdOptions options_of(const Configs& configs) {
  return {.begin_step = configs.begin_step,
          .outer = {.rule = optim::rule_named(kOuterRules, configs.outer, "local_sgd", kPage),
                    .lr = configs.outer_lr,
                    .momentum = configs.outer_momentum},
          .optimizer_state =
              optim::rule_named(kStatesAtSync, configs.optimizer_state, "local_sgd", kPage),
          .delayed = configs.delayed};
}

}  // namespace

std::vector<std::string_view> outer_rule_names() { return optim::names_of(kOuterRules); }
std::vector<std::string_view> state_at_sync_names() { return optim::names_of(kStatesAtSync); }
std::vector<std::string_view> interval_formula_names() { return optim::names_of(kFormulas); }

LocalSgdOptions local_sgd_options(const DistributedStrategy& strategy) {
  if (strategy.localsgd) {
    auto options = options_of(strategy.localsgd_configs);
    options.k_steps = strategy.localsgd_configs.k_steps;
    return options;
  }
  const auto& configs = strategy.adaptive_localsgd_configs;
  auto options = options_of(configs);
  options.adaptive = AdaptiveIntervalOptions{
      .init_k_steps = configs.init_k_steps,
      .max_k_steps = configs.max_k_steps,
      .formula = optim::rule_named(kFormulas, configs.formula, "local_sgd", kPage),
      .loss_smoothing = configs.loss_smoothing};
  return options;
}

}  // namespace fleet
