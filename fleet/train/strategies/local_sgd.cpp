// SPDX-License-Identifier: Apache-2.0
#include "fleet/train/strategies/local_sgd.h"

#include <array>

#include "fleet/core/text/format.h"
#include "fleet/optim/named_rule.h"
#include "fleet/parallel/local_sgd.h"
#include "fleet/train/strategy_check.h"

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

// What both kinds have.
template <typename Configs>
FieldList with_averaging(std::vector<Field> fields) {
  fields.push_back(
      field<&Configs::outer>("outer", "outer optimizer: turns an average into new parameters")
          .one_of(optim::names_of(kOuterRules))
          .beyond_guide());
  fields.push_back(
      field<&Configs::outer_lr>("outer_lr", "learning rate of slow_momentum and nesterov")
          .above(0)
          .beyond_guide());
  fields.push_back(
      field<&Configs::outer_momentum>("outer_momentum", "momentum of slow_momentum and nesterov")
          .at_least(0)
          .below(1)
          .beyond_guide());
  fields.push_back(
      field<&Configs::optimizer_state>("optimizer_state", "the optimizer's state after an average")
          .one_of(optim::names_of(kStatesAtSync))
          .beyond_guide());
  fields.push_back(
      field<&Configs::delayed>(
          "delayed", "overlap the average with the next interval, at whose end it is applied")
          .beyond_guide());
  return {.area = "strategy", .fields = std::move(fields)};
}

template <typename Configs>
void check_averaging(StrategyCheck& check, std::string_view name, const Configs& configs) {
  const auto& strategy = check.strategy;
  // Before begin_step training is synchronous: there fp16_allreduce has gradients to send.
  if (strategy.fp16_allreduce && configs.begin_step <= 1) {
    check.problem(
        format("fp16_allreduce is about gradients, and {} with begin_step = 1 never sends any "
               "(parameters, which it averages, would not survive fp16); switch "
               "fp16_allreduce off, or begin later",
               name));
  }
  if (check.context.is_elastic && configs.delayed) {
    check.problem(
        format("{}_configs.delayed leaves no moment at which all ranks hold the same parameters, "
               "and a restarted rank to an elastic job needs one; leave one of them out",
               name));
  }
  if (strategy.sync_batch_norm) {
    check.problem(
        format("sync_batch_norm mixes the statistics of all ranks in every forward, but with "
               "{} ranks hold different weights and must not wait for each other; switch "
               "sync_batch_norm off: statistics are averaged with the parameters",
               name));
  }
  const Configs defaults;
  if (configs.outer == defaults.outer && (configs.outer_lr != defaults.outer_lr ||
                                          configs.outer_momentum != defaults.outer_momentum)) {
    check.problem(
        format("{}_configs: outer_lr and outer_momentum are for outer = slow_momentum or "
               "nesterov, and outer is average, which has neither; choose one, or leave them out",
               name));
  }
  if (configs.delayed && configs.optimizer_state == "average") {
    check.problem(
        format("{}_configs: with delayed, an average arrives one interval late, and "
               "optimizer_state = average would undo what the state has learned since; keep it "
               "local",
               name));
  }
  const auto& optimizer = check.context.optimizer_name;
  if (configs.optimizer_state != defaults.optimizer_state && check.context.has_opaque_state) {
    check.problem(
        format("{}_configs: optimizer_state = {} needs the optimizer's state, which {} does not "
               "expose; keep it local, or use an optimizer of Fleet's",
               name, configs.optimizer_state, optimizer));
  }
  if (configs.optimizer_state != defaults.optimizer_state && optimizer == "SGD") {
    check.remark(format("{}_configs.optimizer_state has no effect: SGD has no state", name));
  }
  if (check.context.world_size == 1) {
    check.remark(format("{} has nothing to average on one rank: this is plain training", name));
  }
}

}  // namespace

const FieldList& fields_of(const LocalSgdConfigs*) {
  static const FieldList list = with_averaging<LocalSgdConfigs>({
      field<&LocalSgdConfigs::k_steps>("k_steps", "updates between two averages")
          .at_least(1)
          .in_unit("updates"),
      field<&LocalSgdConfigs::begin_step>("begin_step", "synchronous training before this update")
          .at_least(1),
  });
  return list;
}

const FieldList& fields_of(const AdaptiveLocalSgdConfigs*) {
  using C = AdaptiveLocalSgdConfigs;
  static const FieldList list = with_averaging<C>({
      field<&C::init_k_steps>("init_k_steps", "updates before the first average")
          .at_least(1)
          .in_unit("updates"),
      field<&C::begin_step>("begin_step", "synchronous training before this update").at_least(1),
      field<&C::max_k_steps>("max_k_steps", "largest interval")
          .at_least(1)
          .in_unit("updates")
          .beyond_guide(),
      field<&C::formula>("formula", "formula of the interval")
          .one_of(optim::names_of(kFormulas))
          .beyond_guide(),
      field<&C::loss_smoothing>("loss_smoothing", "decay of the moving average of the loss")
          .at_least(0)
          .below(1)
          .beyond_guide(),
  });
  return list;
}

// Paddle asks for SGD or Momentum here. Averaging parameters makes sense over any update rule
// (with Adam inside it is DiLoCo's), so the optimizer is not looked at.
void check_local_sgd(StrategyCheck& check) {
  const auto& strategy = check.strategy;
  if (check.asked.auto_ && !check.asked.localsgd) {
    check.problem(
        check.asked.adaptive_localsgd
            ? "auto makes localsgd adaptive, and adaptive_localsgd is so already; leave auto "
              "off"
            : "auto makes localsgd adaptive, and localsgd is off; switch localsgd on, or "
              "auto off (Paddle's automatic parallelism, of the same name, is not in Fleet)");
  }
  if (strategy.localsgd && strategy.adaptive_localsgd) {
    check.problem(
        "localsgd averages at a fixed interval, adaptive_localsgd at one that it chooses; "
        "switch one of them off");
  }
  if (!strategy.localsgd && !strategy.adaptive_localsgd) {
    if (check.context.is_elastic) {
      check.problem(
          "fleetrun --elastic needs localsgd or adaptive_localsgd: where gradients are summed in "
          "every update, a lost rank makes the update fail; switch one of them on, or "
          "leave --elastic out and restart from snapshots");
    }
    return;
  }
  if (check.context.is_elastic && check.context.has_opaque_state) {
    check.problem(
        format("fleetrun --elastic gives a restarted rank the optimizer's state, which {} does not "
               "expose; use an optimizer of Fleet's, or leave --elastic out and restart "
               "from snapshots",
               check.context.optimizer_name));
  }

  if (strategy.localsgd) {
    check_averaging(check, "localsgd", strategy.localsgd_configs);
    if (strategy.localsgd_configs.k_steps == 1) {
      check.remark(
          "localsgd with k_steps = 1 averages after every update: the traffic of plain training, "
          "which would hide it behind backward");
    }
  } else {
    const auto& configs = strategy.adaptive_localsgd_configs;
    check_averaging(check, "adaptive_localsgd", configs);
    if (configs.init_k_steps > configs.max_k_steps) {
      check.problem(
          format("adaptive_localsgd_configs: the first interval, init_k_steps = {}, is longer "
                 "than max_k_steps = {} allows; raise max_k_steps",
                 configs.init_k_steps, configs.max_k_steps));
    }
  }
}

void make_adaptive(const LocalSgdConfigs& from, AdaptiveLocalSgdConfigs& to) {
  to.init_k_steps = from.k_steps;
  to.begin_step = from.begin_step;
  to.outer = from.outer;
  to.outer_lr = from.outer_lr;
  to.outer_momentum = from.outer_momentum;
  to.optimizer_state = from.optimizer_state;
  to.delayed = from.delayed;
}

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
