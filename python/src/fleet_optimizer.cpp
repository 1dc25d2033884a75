// SPDX-License-Identifier: Apache-2.0
#include <pybind11/stl.h>

#include "fleet/core/error.h"
#include "fleet/optim/adam.h"
#include "fleet/optim/lamb.h"
#include "fleet/optim/lars.h"
#include "fleet/optim/momentum.h"
#include "fleet/optim/sgd.h"

#include "inner_optimizer.h"
#include "module_mirror.h"

namespace fleet::python {
namespace {

template <typename T>
T at(const py::dict& group, const char* key) {
  return group[key].cast<T>();
}

// The model that the optimizer was made with, or that came with it.
ModelHandle model_of(const py::object& python, const py::object& given) {
  const py::object own = python.attr("model");
  if (given.is_none() || own.is(given)) return mirror(own);
  if (own.is_none()) return mirror(given);
  throw UsageError("optim", "the optimizer was made with one model, and model= is another",
                   "leave model= out");
}

// Of LARS and LAMB: the tensors that are left out of decay.
std::unordered_set<const void*> excluded_from_decay(std::string_view area, const ModelHandle& model,
                                                    const ParamGroups& groups,
                                                    const optim::DecayExclusion& exclusion) {
  std::vector<optim::NamedParameter> parameters;
  for (const auto& [name, tensor] : model.parameters()) {
    if (tensor.requires_grad()) parameters.push_back({{name}, tensor});
  }
  std::unordered_set<const void*> excluded;
  if (groups.count() == 1) return excluded;
  const auto flags = optim::excluded_from_decay(area, &model, parameters, exclusion);
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (flags[i]) excluded.insert(parameters[i].tensor.unsafeGetTensorImpl());
  }
  return excluded;
}

// With groups, each rate may change on its own.
template <typename O, typename Options>
std::unique_ptr<optim::Optimizer> make(const ModelHandle& model, const Options& options) {
  if (options.groups.empty()) return std::make_unique<O>(model, options);
  return std::make_unique<WithRateScales<O>>(model, options);
}

}  // namespace

bool is_fleet_optimizer(const py::object& python) {
  return py::isinstance(python, py::module_::import("fleet.optim").attr("_Optimizer"));
}

std::unique_ptr<optim::Optimizer> fleet_optimizer(const py::object& python, const py::object& given,
                                                  const ParamGroups& groups, double max_grad_norm) {
  const auto own = py::module_::import("fleet.optim");
  const auto is = [&](const char* name) { return py::isinstance(python, own.attr(name)); };
  const auto model = model_of(python, given);
  groups.check_parameters(model);
  const auto group = groups.first();
  const double lr = groups.lr();
  const auto for_cpp = [&](const std::unordered_set<const void*>& excluded = {}) {
    return groups.count() == 1 ? std::vector<optim::ParameterGroup>()
                               : groups.for_cpp(model, excluded);
  };
  // What LARS and LAMB have in common; their options are two types.
  const auto layer_wise = [&](auto options, const char* area, const auto& rule) {
    options.lr = lr;
    options.epsilon = at<double>(group, "epsilon");
    options.exclude_from_weight_decay =
        at<std::vector<std::string>>(group, "exclude_from_weight_decay");
    options.max_grad_norm = max_grad_norm;
    options.rule = rule;
    options.groups = for_cpp(excluded_from_decay(
        area, model, groups,
        {.names = options.exclude_from_weight_decay, .bias_and_norm = rule.exclude_bias_and_norm}));
    return options;
  };
  if (is("Lamb")) {
    const auto betas = at<std::pair<double, double>>(group, "betas");
    return make<optim::Lamb>(
        model,
        layer_wise(optim::LambOptions{.beta1 = betas.first,
                                      .beta2 = betas.second,
                                      .lamb_weight_decay = at<double>(group, "lamb_weight_decay")},
                   "LAMB", optim::lamb_rule(at<std::string>(group, "rule"))));
  }
  if (is("Lars")) {
    return make<optim::Lars>(
        model,
        layer_wise(optim::LarsOptions{.momentum = at<double>(group, "momentum"),
                                      .lars_coeff = at<double>(group, "lars_coeff"),
                                      .lars_weight_decay = at<double>(group, "lars_weight_decay"),
                                      .use_nesterov = at<bool>(group, "nesterov")},
                   "LARS", optim::lars_rule(at<std::string>(group, "rule"))));
  }
  const double decay = at<double>(group, "weight_decay");
  const auto adam = [&](auto options) {
    const auto betas = at<std::pair<double, double>>(group, "betas");
    options.lr = lr;
    options.beta1 = betas.first;
    options.beta2 = betas.second;
    options.epsilon = at<double>(group, "eps");
    options.weight_decay = decay;
    options.max_grad_norm = max_grad_norm;
    options.groups = for_cpp();
    return options;
  };
  if (is("AdamW")) return make<optim::AdamW>(model, adam(optim::AdamWOptions()));
  if (is("Adam")) return make<optim::Adam>(model, adam(optim::AdamOptions()));
  if (is("Momentum")) {
    return make<optim::Momentum>(model,
                                 optim::MomentumOptions{.lr = lr,
                                                        .momentum = at<double>(group, "momentum"),
                                                        .weight_decay = decay,
                                                        .use_nesterov = at<bool>(group, "nesterov"),
                                                        .max_grad_norm = max_grad_norm,
                                                        .groups = for_cpp()});
  }
  return make<optim::SGD>(
      model,
      optim::SgdOptions{
          .lr = lr, .weight_decay = decay, .max_grad_norm = max_grad_norm, .groups = for_cpp()});
}

}  // namespace fleet::python
