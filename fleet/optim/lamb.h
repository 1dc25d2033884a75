// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fleet/optim/optimizer.h"
#include "fleet/optim/passes/moment_corrections.h"

namespace fleet::optim {

/// Where LAMB makes up for moments that start at 0.
enum class BiasCorrection {
  kMoments,  // in both moments, as in the paper
  kStep,     // in the step's size, after the ratio: a hidden warm-up of about a thousand updates
  kNone,
};

/// In what implementations of LAMB differ. The defaults are the paper's, with biases and norms left
/// out.
struct LambRule {
  BiasCorrection bias_correction = BiasCorrection::kMoments;
  bool adapt_without_decay = false;  // the ratio also scales parameters whose decay is 0
  double min_ratio = 0;
  double max_ratio = 0;               // 0: no limit
  bool exclude_bias_and_norm = true;  // from decay, and with it from the ratio

  bool operator==(const LambRule&) const = default;
};

/// fleet, paper, paddle, apex, nvlamb, deepspeed, timm or timm_trust_clip. Apex, NVLAMB and timm
/// clip the gradients too: set max_grad_norm = 1.
LambRule lamb_rule(std::string_view name);
std::vector<std::string_view> lamb_rule_names();

/// LAMB's rates and rule.
struct LambOptions {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-6;
  double lamb_weight_decay = 0.01;
  std::vector<std::string> exclude_from_weight_decay = {};  // substrings of names
  double max_grad_norm = 0;  // clip all gradients together to this norm; 0: do not
  LambRule rule = {};
  std::vector<ParameterGroup> groups = {};
};

/// What LAMB makes of the norms of one parameter and its direction.
double lamb_ratio(const LambRule& rule, double value_norm, double update_norm);

/// What is multiplied with the first moment, the second one's root, and the step.
struct LambCorrection {
  double first = 1;
  double root = 1;
  double step = 1;
};
LambCorrection lamb_correction(const LambRule& rule, const MomentCorrections::Factors& of);

/// You et al., arXiv 1904.00962. Adam's direction with decay, scaled so that each parameter tensor
/// moves by a fraction of its own norm:
///   u = m^ / (sqrt(v^) + epsilon) + decay * p;  p -= lr * |p| / |u| * u
/// and the ratio is 1 where a norm is 0. m^ and v^ are corrected by the parameter's own number of
/// updates.
///
///   optim::Lamb lamb(net, {.lr = 6e-3, .max_grad_norm = 1, .rule = optim::lamb_rule("nvlamb")});
class Lamb : public Optimizer {
 public:
  Lamb(ModelHandle model, const LambOptions& options = {});
  std::string_view name() const override { return "LAMB"; }
  const LambOptions& options() const { return options_; }

 private:
  std::vector<std::string> state_names() const override { return {"moment1", "moment2"}; }
  bool counts_updates() const override { return true; }
  void adjust_settings(const ParameterArena& arena, std::vector<SpanSettings>& settings) override;
  void prepare() override;
  bool has_trust_ratio() const override { return true; }
  ops::SquareSums measure(const FusedSlice& slice) override;
  double trust(size_t span, double value_norm, double update_norm) override;
  void apply(const FusedSlice& slice) override;
  void apply(ParameterSlice& slice) override;
  ops::LambStep step_of(size_t span, double gradient_scale) const;
  double rate_of(size_t span) const;
  LambCorrection correction_of(size_t span) const {
    return lamb_correction(options_.rule, corrections_[span]);
  }

  LambOptions options_;
  MomentCorrections corrections_;
};

}  // namespace fleet::optim
