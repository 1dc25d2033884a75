// SPDX-License-Identifier: Apache-2.0
#include "fleet/optim/parameter_group.h"

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

bool holds(const ArenaSpan& span, const std::string& part) {
  if (span.name.find(part) != std::string::npos) return true;
  for (const auto& alias : span.aliases) {
    if (alias.find(part) != std::string::npos) return true;
  }
  return false;
}

bool holds_any(const ArenaSpan& span, const std::vector<std::string>& parts) {
  for (const auto& part : parts) {
    if (holds(span, part)) return true;
  }
  return false;
}

// Paddle calls the first filter and bias of a layer x.w_0 and x.b_0.
std::string advice_for(const std::string& part, const std::vector<std::string>& names) {
  if (part.find("b_0") != std::string::npos) return "; biases are called '.bias' here";
  if (part.find("w_0") != std::string::npos) return "; weights are called '.weight' here";
  return did_you_mean(part, names);
}

bool is_known(const ParameterArena& arena, const std::string& part) {
  for (const auto& span : arena.spans()) {
    if (!part.empty() && holds(span, part)) return true;
  }
  return false;
}

void find_unknown(std::string_view what, const ParameterArena& arena,
                  const std::vector<std::string>& parts, std::vector<std::string>& problems) {
  std::vector<std::string> names;
  for (const auto& span : arena.spans()) names.push_back(span.name);
  for (const auto& part : parts) {
    if (is_known(arena, part)) continue;
    problems.push_back(format("{}: '{}' is part of no trainable parameter's name{}", what, part,
                              advice_for(part, names)));
  }
}

// Of the modules whose type has `kind` in its name, such as "BatchNorm".
std::set<const void*> parameters_of(const ModelHandle& model, std::string_view kind) {
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

bool is_bias(const ArenaSpan& span) {
  const auto last = span.name.substr(span.name.rfind('.') + 1);  // npos + 1 is 0
  return last.find("bias") != std::string::npos;
}

// Paddle names parameters after the kind of their layer, "batch_norm_3.w_0", LibTorch after the
// member, "layer1.0.bn1.weight". What the guide's parts of names mean, per span; nothing for
// others.
std::optional<std::vector<bool>> in_paddle(const std::string& part, const ModelHandle& model,
                                           const ParameterArena& arena) {
  static const std::map<std::string, std::string, std::less<>> kKinds = {
      {"batch_norm", "BatchNorm"},
      {"group_norm", "GroupNorm"},
      {"instance_norm", "InstanceNorm"},
      {"layer_norm", "LayerNorm"}};
  std::vector<bool> result;
  if (part == ".b_0" || part == "b_0") {
    for (const auto& span : arena.spans()) result.push_back(is_bias(span));
    return result;
  }
  const auto kind = kKinds.find(part);
  if (kind == kKinds.end()) return std::nullopt;
  const auto parameters = parameters_of(model, kind->second);
  for (const auto& span : arena.spans()) {
    result.push_back(parameters.contains(span.parameter.unsafeGetTensorImpl()));
  }
  return result;
}

// Per span.
std::vector<bool> bias_or_norm(const ModelHandle& model, const ParameterArena& arena) {
  const auto of_norms = parameters_of(model, "Norm");
  std::vector<bool> result;
  for (const auto& span : arena.spans()) {
    result.push_back(span.parameter.dim() <= 1 ||
                     of_norms.contains(span.parameter.unsafeGetTensorImpl()));
  }
  return result;
}

}  // namespace

void apply_groups(std::string_view area, const ParameterArena& arena,
                  const std::vector<ParameterGroup>& groups, std::vector<SpanSettings>& settings) {
  std::vector<std::string> problems;
  for (size_t g = 0; g < groups.size(); ++g) {
    const auto what = format("groups[{}]", g);
    if (groups[g].names.empty()) problems.push_back(format("{} names no parameter", what));
    find_unknown(what, arena, groups[g].names, problems);
    if (!(std::isfinite(groups[g].lr_scale) && groups[g].lr_scale >= 0)) {
      problems.push_back(format("{}: lr_scale is {}", what, groups[g].lr_scale));
    }
    if (const auto decay = groups[g].weight_decay; decay && !(std::isfinite(*decay) && *decay >= 0))
      problems.push_back(format("{}: weight_decay is {}", what, *decay));
  }
  if (!problems.empty())
    throw UsageError::all(area, "these parameter groups make no sense:", problems);
  for (size_t i = 0; i < arena.spans().size(); ++i) {
    for (const auto& group : groups) {
      if (!holds_any(arena.spans()[i], group.names)) continue;
      settings[i].lr_scale = group.lr_scale;
      if (group.weight_decay) settings[i].weight_decay = *group.weight_decay;
      if (group.use_trust_ratio) settings[i].use_trust_ratio = *group.use_trust_ratio;
      break;
    }
  }
}

void leave_out(std::string_view area, const ModelHandle& model, const ParameterArena& arena,
               const LeftOut& left_out, std::vector<SpanSettings>& settings) {
  std::vector<bool> is_out(settings.size());
  if (left_out.bias_and_norm) is_out = bias_or_norm(model, arena);
  std::vector<std::string> parts;
  for (const auto& part : left_out.names) {
    const auto meant = is_known(arena, part) ? std::nullopt : in_paddle(part, model, arena);
    if (!meant) {
      parts.push_back(part);
      continue;
    }
    for (size_t i = 0; i < is_out.size(); ++i) is_out[i] = is_out[i] || (*meant)[i];
  }
  std::vector<std::string> problems;
  find_unknown("exclude_from_weight_decay", arena, parts, problems);
  if (!problems.empty()) {
    throw UsageError::all(area, "these names fit nothing:", problems,
                          "use parts of the names in named_parameters(), or leave them out");
  }
  for (size_t i = 0; i < settings.size(); ++i) {
    if (is_out[i] || holds_any(arena.spans()[i], parts)) settings[i].weight_decay = 0;
    settings[i].use_trust_ratio = settings[i].weight_decay != 0 || left_out.keep_trust_ratio;
  }
}

}  // namespace fleet::optim
