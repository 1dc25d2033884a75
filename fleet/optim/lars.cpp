// SPDX-License-Identifier: Apache-2.0
#include "fleet/optim/lars.h"

#include <algorithm>
#include <array>

#include "fleet/core/text/format.h"
#include "fleet/optim/named_rule.h"
#include "fleet/optim/option_checks.h"

namespace fleet::optim {
namespace {

// Read in the sources of these libraries; docs/strategies/lars.md has the table with constants.
using Rule = NamedRule<LarsRule>;
constexpr std::array kRules = {
    Rule{"fleet", {}},
    Rule{"paper", {.adapt_without_decay = true, .exclude_bias_and_norm = false}},
    Rule{"paddle_cpu", {.exclude_bias_and_norm = false}},
    Rule{"paddle_gpu", {.adapt_without_decay = true, .exclude_bias_and_norm = false}},
    Rule{"mlperf", {}},
    Rule{"apex_larc",
         {.lr_in_velocity = false,
          .adapt_without_decay = true,
          .decay_at_zero_norm = false,
          .trust_clip = true,
          .exclude_bias_and_norm = false}},
    Rule{"timm", {.lr_in_velocity = false, .exclude_bias_and_norm = false}},
};

}  // namespace

std::vector<std::string_view> lars_rule_names() { return names_of(kRules); }

LarsRule lars_rule(std::string_view name) {
  return rule_named(kRules, name, "LARS", "docs/strategies/lars.md");
}

Lars::Lars(ModelHandle model, const LarsOptions& options)
    : Optimizer(std::move(model), {.lr = options.lr,
                                   .weight_decay = options.lars_weight_decay,
                                   .max_grad_norm = options.max_grad_norm,
                                   .groups = options.groups}),
      options_(options) {
  std::vector<std::string> problems;
  require_unit_interval(problems, "momentum", options.momentum);
  require_not_negative(problems, "lars_weight_decay", options.lars_weight_decay);
  require_not_negative(problems, "epsilon", options.epsilon);
  require_not_negative(problems, "max_grad_norm", options.max_grad_norm);
  if (!(options.lars_coeff > 0)) {
    problems.push_back(format("lars_coeff {} is not above 0", options.lars_coeff));
  }
  if (options.use_nesterov && options.momentum == 0) {
    problems.emplace_back("use_nesterov looks ahead along a momentum, and momentum is 0");
  }
  throw_if_any("LARS", problems);
}

void Lars::adjust_settings(const ParameterArena& arena, std::vector<SpanSettings>& settings) {
  exclude_from_decay("LARS", model_, arena,
                     {.names = options_.exclude_from_weight_decay,
                      .bias_and_norm = options_.rule.exclude_bias_and_norm,
                      .keep_trust_ratio = options_.rule.adapt_without_decay},
                     settings);
}

void Lars::prepare() { skips_decay_.assign(settings_.size(), false); }

ops::SquareSums Lars::measure(const FusedSlice& slice) {
  if (!settings_[slice.span].use_trust_ratio) return {0, 0};
  const auto square_sum = ops::update_kernels().square_sum;
  const double scale = slice.gradient_scale;
  return {.value = square_sum(slice.value, slice.length),
          .update = gradient_square_sum(slice) * scale * scale};
}

LarsRatio lars_ratio(const LarsOptions& options, const LarsRates& rates, double value_norm,
                     double gradient_norm) {
  if (!(value_norm > 0 && gradient_norm > 0)) {
    return {.skips_decay = !options.rule.decay_at_zero_norm};
  }
  const double ratio = options.lars_coeff * value_norm /
                       (gradient_norm + rates.weight_decay * value_norm + options.epsilon);
  if (!options.rule.trust_clip) return {.ratio = ratio};
  return {.ratio = rates.lr > 0 ? std::min(ratio / rates.lr, 1.0) : 1.0};
}

double Lars::trust(size_t span, double value_norm, double gradient_norm) {
  const auto& of = settings_[span];
  if (!of.use_trust_ratio) return 1;
  const auto result =
      lars_ratio(options_, {.lr = lr_ * of.lr_scale, .weight_decay = of.weight_decay}, value_norm,
                 gradient_norm);
  skips_decay_[span] = result.skips_decay;
  return result.ratio;
}

Lars::Factors Lars::factors(size_t span) const {
  const double lr = lr_ * settings_[span].lr_scale;
  const bool inside = options_.rule.lr_in_velocity;
  return {.decay = skips_decay_[span] != 0 ? 0 : settings_[span].weight_decay,
          .inner = ratio(span) * (inside ? lr : 1),
          .outer = inside ? 1 : lr};
}

void Lars::apply(const FusedSlice& slice) {
  const auto of = factors(slice.span);
  ops::update_kernels().momentum({.gradient_scale = slice.gradient_scale,
                                  .weight_decay = static_cast<float>(of.decay),
                                  .momentum = static_cast<float>(options_.momentum),
                                  .inner = static_cast<float>(of.inner),
                                  .outer = static_cast<float>(of.outer),
                                  .nesterov = options_.use_nesterov},
                                 slice.value, slice.gradient, slice.state[0], slice.length,
                                 slice.low);
}

void Lars::apply(ParameterSlice& slice) {
  set_trust(slice.span, slice.value.norm().item<double>(), slice.gradient.norm().item<double>());
  const auto of = factors(slice.span);
  const auto d = (slice.gradient + slice.value * of.decay) * of.inner;
  auto& velocity = slice.state[0];
  velocity.mul_(options_.momentum).add_(d);
  const auto direction = options_.use_nesterov ? d + velocity * options_.momentum : velocity;
  slice.value.sub_(direction * of.outer);
}

}  // namespace fleet::optim
