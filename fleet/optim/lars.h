// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fleet/optim/optimizer.h"

namespace fleet::optim {

/// In what implementations of LARS differ. The defaults are the paper's, with biases and norms left
/// out.
struct LarsRule {
  bool lr_in_velocity = true;         // off: p -= lr * v, so that v holds no learning rate
  bool adapt_without_decay = false;   // the ratio also scales parameters whose decay is 0
  bool decay_at_zero_norm = true;     // off: where a norm is 0, decay is left out with the ratio
  bool trust_clip = false;            // the ratio times the rate is at most the rate (LARC)
  bool exclude_bias_and_norm = true;  // from decay, and with it from the ratio

  bool operator==(const LarsRule&) const = default;
};

/// fleet, paper, paddle_cpu, paddle_gpu, mlperf, apex_larc or timm.
LarsRule lars_rule(std::string_view name);
std::vector<std::string_view> lars_rule_names();

/// LARS's rates and rule.
struct LarsOptions {
  double lr = 0.01;
  double momentum = 0.9;
  double lars_coeff = 0.001;  // the trust coefficient
  double lars_weight_decay = 0.0005;
  double epsilon = 0;  // added to the ratio's denominator
  bool use_nesterov = false;
  std::vector<std::string> exclude_from_weight_decay = {};  // substrings of names
  double max_grad_norm = 0;  // clip all gradients together to this norm; 0: do not
  LarsRule rule = {};
  std::vector<ParameterGroup> groups = {};
};

/// What LARS makes of the norms of one parameter.
struct LarsRatio {
  double ratio = 1;
  bool skips_decay = false;  // without decay, for lack of a norm
};
/// What a LARS step multiplies by.
struct LarsRates {
  double lr = 0;
  double weight_decay = 0;
};
LarsRatio lars_ratio(const LarsOptions& options, const LarsRates& rates, double value_norm,
                     double gradient_norm);

/// You, Gitman and Ginsburg, arXiv 1708.03888. Each parameter tensor has a rate of its own, so that
/// no update is large against what it updates:
///   ratio = lars_coeff * |p| / (|g| + decay * |p| + epsilon), or 1 where a norm is 0
///   v = momentum * v + lr * ratio * (g + decay * p);  p -= v
///
///   optim::Lars lars(net, {.lr = 10, .rule = optim::lars_rule("mlperf")});
class Lars : public Optimizer {
 public:
  Lars(ModelHandle model, const LarsOptions& options = {});
  std::string_view name() const override { return "LARS"; }
  const LarsOptions& options() const { return options_; }

 private:
  std::vector<std::string> state_names() const override { return {"velocity"}; }
  void adjust_settings(const ParameterArena& arena, std::vector<SpanSettings>& settings) override;
  void prepare() override;
  bool has_trust_ratio() const override { return true; }
  ops::SquareSums measure(const FusedSlice& slice) override;
  double trust(size_t span, double value_norm, double gradient_norm) override;
  void apply(const FusedSlice& slice) override;
  void apply(ParameterSlice& slice) override;
  /// v = momentum v + inner (g + decay p);  p -= outer v
  struct Factors {
    double decay = 0;
    double inner = 1;
    double outer = 1;
  };
  Factors factors(size_t span) const;

  LarsOptions options_;
  std::vector<char> skips_decay_;  // per span: without decay in this step, for lack of a norm
};

}  // namespace fleet::optim
