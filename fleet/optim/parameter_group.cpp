// SPDX-License-Identifier: Apache-2.0
#include "fleet/optim/parameter_group.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <set>

#include <torch/nn/module.h>

#include "fleet/core/error.h"
#include "fleet/core/text/format.h"
#include "fleet/core/text/nearest_name.h"

namespace fleet::optim {
namespace {

bool holds(const NamedParameter& parameter, const std::string& part) {
  return std::ranges::any_of(parameter.names, [&](const std::string& name) {
    return name.find(part) != std::string::npos;
  });
}

bool holds_any(const NamedParameter& parameter, const std::vector<std::string>& parts) {
  return std::ranges::any_of(parts,
                             [&](const std::string& part) { return holds(parameter, part); });
}

std::vector<NamedParameter> parameters_of(const ParameterArena& arena) {
  std::vector<NamedParameter> result;
  for (const auto& span : arena.spans()) {
    auto& names = result.emplace_back(NamedParameter{{span.name}, span.parameter}).names;
    names.insert(names.end(), span.aliases.begin(), span.aliases.end());
  }
  return result;
}

// Paddle calls the first filter and bias of a layer x.w_0 and x.b_0.
std::string advice_for(const std::string& part, const std::vector<std::string>& names) {
  if (part.find("b_0") != std::string::npos) return "; biases are called '.bias' here";
  if (part.find("w_0") != std::string::npos) return "; weights are called '.weight' here";
  return did_you_mean(part, names);
}

bool is_known(const std::vector<NamedParameter>& parameters, const std::string& part) {
  return !part.empty() && std::ranges::any_of(parameters, [&](const NamedParameter& parameter) {
    return holds(parameter, part);
  });
}

void find_unknown(std::string_view what, const std::vector<NamedParameter>& parameters,
                  const std::vector<std::string>& parts, std::vector<std::string>& problems) {
  std::vector<std::string> names;
  names.reserve(parameters.size());
  for (const auto& parameter : parameters) names.push_back(parameter.names.front());
  for (const auto& part : parts) {
    if (is_known(parameters, part)) continue;
    problems.push_back(format("{}: '{}' is part of no trainable parameter's name{}", what, part,
                              advice_for(part, names)));
  }
}

// Of the modules whose type has `kind` in its name, such as "BatchNorm".
std::set<const void*> parameters_in(const ModelHandle& model, std::string_view kind) {
  std::set<const void*> found;
  const auto look_at = [&](const torch::nn::Module& module) {
    if (module.name().find(kind) == std::string::npos) return;
    for (const auto& parameter : module.parameters(/*recurse=*/false)) {
      found.insert(parameter.unsafeGetTensorImpl());
    }
  };
  look_at(model.module());  // apart: a module on the stack cannot list itself
  for (const auto& module : model.module().modules(/*include_self=*/false)) look_at(*module);
  return found;
}

bool is_bias(const NamedParameter& parameter) {
  const auto& name = parameter.names.front();
  const auto last = name.substr(name.rfind('.') + 1);  // npos + 1 is 0
  return last.find("bias") != std::string::npos;
}

using IsExcluded = std::function<bool(const NamedParameter&)>;

IsExcluded is_in_modules(const ModelHandle& model, std::string_view kind) {
  return [found = parameters_in(model, kind)](const NamedParameter& parameter) {
    return found.contains(parameter.tensor.unsafeGetTensorImpl());
  };
}

// Paddle names parameters after the kind of their layer, "batch_norm_3.w_0", LibTorch after the
// member, "layer1.0.bn1.weight". What the guide's parts of names mean; null for others.
IsExcluded in_paddle(const std::string& part, const ModelHandle* model) {
  static const std::map<std::string, std::string, std::less<>> kKinds = {
      {"batch_norm", "BatchNorm"},
      {"group_norm", "GroupNorm"},
      {"instance_norm", "InstanceNorm"},
      {"layer_norm", "LayerNorm"}};
  if (part == ".b_0" || part == "b_0") return is_bias;
  const auto kind = kKinds.find(part);
  if (kind == kKinds.end() || !model) return nullptr;
  return is_in_modules(*model, kind->second);
}

}  // namespace

void apply_groups(std::string_view area, const ParameterArena& arena,
                  const std::vector<ParameterGroup>& groups, std::vector<SpanSettings>& settings) {
  const auto parameters = parameters_of(arena);
  std::vector<std::string> problems;
  for (size_t g = 0; g < groups.size(); ++g) {
    const auto what = format("groups[{}]", g);
    if (groups[g].names.empty()) problems.push_back(format("{} names no parameter", what));
    find_unknown(what, parameters, groups[g].names, problems);
    if (!(std::isfinite(groups[g].lr_scale) && groups[g].lr_scale >= 0)) {
      problems.push_back(format("{}: lr_scale is {}", what, groups[g].lr_scale));
    }
    if (const auto decay = groups[g].weight_decay; decay && !(std::isfinite(*decay) && *decay >= 0))
      problems.push_back(format("{}: weight_decay is {}", what, *decay));
  }
  if (!problems.empty())
    throw UsageError::all(area, "these parameter groups are not valid:", problems);
  for (size_t i = 0; i < parameters.size(); ++i) {
    for (const auto& group : groups) {
      if (!holds_any(parameters[i], group.names)) continue;
      settings[i].lr_scale = group.lr_scale;
      if (group.weight_decay) settings[i].weight_decay = *group.weight_decay;
      if (group.use_trust_ratio) settings[i].use_trust_ratio = *group.use_trust_ratio;
      break;
    }
  }
}

std::vector<bool> excluded_from_decay(std::string_view area, const ModelHandle* model,
                                      const std::vector<NamedParameter>& parameters,
                                      const DecayExclusion& exclusion) {
  std::vector<IsExcluded> rules;
  if (exclusion.bias_and_norm) {
    rules.emplace_back([](const NamedParameter& parameter) { return parameter.tensor.dim() <= 1; });
    if (model) rules.push_back(is_in_modules(*model, "Norm"));
  }
  std::vector<std::string> parts;
  for (const auto& part : exclusion.names) {
    auto meant = is_known(parameters, part) ? nullptr : in_paddle(part, model);
    if (meant) {
      rules.push_back(std::move(meant));
    } else {
      parts.push_back(part);
    }
  }
  std::vector<std::string> problems;
  find_unknown("exclude_from_weight_decay", parameters, parts, problems);
  if (!problems.empty()) {
    throw UsageError::all(
        area, "these names fit nothing:", problems,
        model ? "use parts of the names in named_parameters(), or leave them out"
              : "use parts of the names in named_parameters(); kinds of modules such as "
                "'batch_norm' are known where the optimizer is made with the model");
  }
  rules.emplace_back([&](const NamedParameter& parameter) { return holds_any(parameter, parts); });
  std::vector<bool> result;
  result.reserve(parameters.size());
  for (const auto& parameter : parameters) {
    result.push_back(std::ranges::any_of(
        rules, [&](const IsExcluded& is_excluded) { return is_excluded(parameter); }));
  }
  return result;
}

void exclude_from_decay(std::string_view area, const ModelHandle& model,
                        const ParameterArena& arena, const DecayExclusion& exclusion,
                        std::vector<SpanSettings>& settings) {
  const auto is_out = excluded_from_decay(area, &model, parameters_of(arena), exclusion);
  for (size_t i = 0; i < settings.size(); ++i) {
    if (is_out[i]) settings[i].weight_decay = 0;
    settings[i].use_trust_ratio = settings[i].weight_decay != 0 || exclusion.keep_trust_ratio;
  }
}

}  // namespace fleet::optim
