// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <torch/types.h>

#include "fleet/core/model_handle.h"
#include "fleet/core/parameter_arena.h"

namespace fleet::optim {

/// Settings of their own for the parameters whose names hold one of `names`; of several groups the
/// first that fits counts. A part of a name that fits no parameter is an error.
///
///   optim::Momentum sgd(net, {.lr = 0.1, .groups = {{.names = {"head."}, .lr_scale = 10}}});
struct ParameterGroup {
  std::vector<std::string> names;
  double lr_scale = 1;                       // times the optimizer's rate
  std::optional<double> weight_decay = {};   // instead of the optimizer's
  std::optional<bool> use_trust_ratio = {};  // LARS and LAMB: instead of what their rule says
};

/// What holds for one parameter.
struct SpanSettings {
  double lr_scale = 1;
  double weight_decay = 0;
  bool use_trust_ratio = false;
};

/// Applies `groups` to `settings`, which holds one entry per span. `area` names the optimizer in
/// errors.
void apply_groups(std::string_view area, const ParameterArena& arena,
                  const std::vector<ParameterGroup>& groups, std::vector<SpanSettings>& settings);

/// What LARS and LAMB exclude from weight decay, and with it from the trust ratio.
struct DecayExclusion {
  /// Parts of names; one that fits no parameter is an error. Where no name has them, the guide's
  /// 'batch_norm' (and 'layer_norm', ...) mean the parameters of such modules, '.b_0' all biases;
  /// these may fit nothing.
  std::vector<std::string> names = {};
  /// Biases and parameters of norm layers: at most one dimension, or of a module whose type is
  /// called ...Norm...
  bool bias_and_norm = true;
  bool keep_trust_ratio = false;  // out of decay only
};
void exclude_from_decay(std::string_view area, const ModelHandle& model,
                        const ParameterArena& arena, const DecayExclusion& exclusion,
                        std::vector<SpanSettings>& settings);

/// A parameter and all names that it has.
struct NamedParameter {
  std::vector<std::string> names;
  torch::Tensor tensor;
};
/// The same without an arena: for each parameter, whether it is excluded from decay. `model` null:
/// the modules are not known, so that norm layers are those with one dimension, and 'batch_norm' is
/// an error.
std::vector<bool> excluded_from_decay(std::string_view area, const ModelHandle* model,
                                      const std::vector<NamedParameter>& parameters,
                                      const DecayExclusion& exclusion);

}  // namespace fleet::optim
