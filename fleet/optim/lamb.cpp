// SPDX-License-Identifier: Apache-2.0
#include "fleet/optim/lamb.h"

#include <array>
#include <cmath>

#include "fleet/core/text/format.h"
#include "fleet/optim/named_rule.h"
#include "fleet/optim/option_checks.h"

namespace fleet::optim {
namespace {

// Read in the sources of these libraries; docs/strategies/lamb.md has the table with constants.
using Rule = NamedRule<LambRule>;
constexpr std::array kRules = {
    Rule{"fleet", {}},
    Rule{"paper", {.adapt_without_decay = true, .exclude_bias_and_norm = false}},
    Rule{"paddle", {.exclude_bias_and_norm = false}},
    Rule{"apex", {.exclude_bias_and_norm = false}},
    Rule{"nvlamb", {.adapt_without_decay = true, .exclude_bias_and_norm = false}},
    Rule{"deepspeed",
         {.bias_correction = BiasCorrection::kStep,
          .adapt_without_decay = true,
          .min_ratio = 0.01,
          .max_ratio = 10,
          .exclude_bias_and_norm = false}},
    Rule{"timm", {.exclude_bias_and_norm = false}},
    Rule{"timm_trust_clip", {.max_ratio = 1, .exclude_bias_and_norm = false}},
};

}  // namespace

std::vector<std::string_view> lamb_rule_names() { return names_of(kRules); }

LambRule lamb_rule(std::string_view name) {
  return rule_named(kRules, name, "LAMB", "docs/strategies/lamb.md");
}

Lamb::Lamb(ModelHandle model, const LambOptions& options)
    : Optimizer(std::move(model), {.lr = options.lr,
                                   .weight_decay = options.lamb_weight_decay,
                                   .max_grad_norm = options.max_grad_norm,
                                   .groups = options.groups}),
      options_(options) {
  std::vector<std::string> problems;
  require_unit_interval(problems, "beta1", options.beta1);
  require_unit_interval(problems, "beta2", options.beta2);
  if (!(options.epsilon > 0)) {
    problems.push_back(format("epsilon {} is not above 0", options.epsilon));
  }
  require_not_negative(problems, "lamb_weight_decay", options.lamb_weight_decay);
  require_not_negative(problems, "max_grad_norm", options.max_grad_norm);
  require_not_negative(problems, "min_ratio", options.rule.min_ratio);
  require_not_negative(problems, "max_ratio", options.rule.max_ratio);
  if (options.rule.max_ratio > 0 && options.rule.max_ratio < options.rule.min_ratio) {
    problems.push_back(format("max_ratio {} is below min_ratio {}", options.rule.max_ratio,
                              options.rule.min_ratio));
  }
  throw_if_any("LAMB", problems);
}

void Lamb::adjust_settings(const ParameterArena& arena, std::vector<SpanSettings>& settings) {
  exclude_from_decay("LAMB", model_, arena,
                     {.names = options_.exclude_from_weight_decay,
                      .bias_and_norm = options_.rule.exclude_bias_and_norm,
                      .keep_trust_ratio = options_.rule.adapt_without_decay},
                     settings);
}

void Lamb::prepare() { corrections_.set(span_updates(), options_.beta1, options_.beta2); }

LambCorrection lamb_correction(const LambRule& rule, const MomentCorrections::Factors& of) {
  switch (rule.bias_correction) {
    case BiasCorrection::kMoments:
      return {.first = 1 / of.first, .root = 1 / std::sqrt(of.second)};
    case BiasCorrection::kStep:
      return {.step = std::sqrt(of.second) / of.first};
    case BiasCorrection::kNone:
      break;
  }
  return {};
}

ops::LambStep Lamb::step_of(size_t span, double gradient_scale) const {
  const auto correction = correction_of(span);
  return {.gradient_scale = static_cast<float>(gradient_scale),
          .weight_decay = static_cast<float>(settings_[span].weight_decay),
          .beta1 = static_cast<float>(options_.beta1),
          .beta2 = static_cast<float>(options_.beta2),
          .one_minus_beta1 = static_cast<float>(1 - options_.beta1),
          .one_minus_beta2 = static_cast<float>(1 - options_.beta2),
          .correction = static_cast<float>(correction.first),
          .root_correction = static_cast<float>(correction.root),
          .epsilon = static_cast<float>(options_.epsilon)};
}

ops::SquareSums Lamb::measure(const FusedSlice& slice) {
  return ops::update_kernels().lamb_moments(step_of(slice.span, slice.gradient_scale), slice.value,
                                            slice.gradient, slice.state[0], slice.state[1],
                                            slice.length);
}

double lamb_ratio(const LambRule& rule, double value_norm, double update_norm) {
  if (!(value_norm > 0 && update_norm > 0)) return 1;
  const double ratio = std::max(value_norm / update_norm, rule.min_ratio);
  return rule.max_ratio > 0 ? std::min(ratio, rule.max_ratio) : ratio;
}

double Lamb::trust(size_t span, double value_norm, double update_norm) {
  if (!settings_[span].use_trust_ratio) return 1;
  return lamb_ratio(options_.rule, value_norm, update_norm);
}

double Lamb::rate_of(size_t span) const {
  return lr_ * settings_[span].lr_scale * correction_of(span).step * ratio(span);
}

void Lamb::apply(const FusedSlice& slice) {
  ops::update_kernels().lamb_apply(step_of(slice.span, slice.gradient_scale),
                                   static_cast<float>(rate_of(slice.span)), slice.value,
                                   slice.state[0], slice.state[1], slice.length, slice.low);
}

void Lamb::apply(ParameterSlice& slice) {
  auto& moment1 = slice.state[0];
  auto& moment2 = slice.state[1];
  moment1.mul_(options_.beta1).add_(slice.gradient, 1 - options_.beta1);
  moment2.mul_(options_.beta2).addcmul_(slice.gradient, slice.gradient, 1 - options_.beta2);
  const auto correction = correction_of(slice.span);
  const auto denominator = moment2.sqrt().mul_(correction.root).add_(options_.epsilon);
  const auto update = (moment1 / denominator)
                          .mul_(correction.first)
                          .add_(slice.value, settings_[slice.span].weight_decay);
  set_trust(slice.span, slice.value.norm().item<double>(), update.norm().item<double>());
  slice.value.sub_(update, rate_of(slice.span));
}

}  // namespace fleet::optim
