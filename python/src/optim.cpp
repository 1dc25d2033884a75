// SPDX-License-Identifier: Apache-2.0
#include "fleet/core/error.h"
#include "fleet/core/text/format.h"
#include "fleet/optim/parameter_group.h"
#include "fleet/optim/passes/tensor_updates.h"

#include "bindings.h"
#include "gil.h"
#include "module_mirror.h"

namespace fleet::python {
namespace {

using Tensors = std::vector<torch::Tensor>;

struct Updates {
  Tensors values, gradients;
  std::vector<Tensors> state;
  std::vector<int64_t> updates = {};
  std::vector<bool> is_excluded = {};

  std::vector<optim::TensorUpdate> list() const {
    std::vector<optim::TensorUpdate> result(values.size());
    for (size_t i = 0; i < values.size(); ++i) {
      result[i] = {.value = values[i], .gradient = gradients[i]};
      for (size_t s = 0; s < state.size(); ++s) result[i].state[s] = state[s][i];
      if (!updates.empty()) result[i].updates = updates[i];
      if (!is_excluded.empty()) result[i].is_excluded = is_excluded[i];
    }
    return result;
  }
};

template <typename Options>
using Rule = void (*)(std::span<optim::TensorUpdate>, const Options&);

template <typename Options>
void run(Rule<Options> rule, const Updates& updates, const Options& options) {
  const ReleaseGil no_gil;
  auto list = updates.list();
  rule(list, options);
}

std::vector<std::string> texts(const std::vector<std::string_view>& names) {
  return {names.begin(), names.end()};
}

// Of LARS or LAMB: for each parameter, whether it is left out. `model` may be None, `names` empty.
std::vector<bool> excluded_from_decay(const std::string& area, const py::object& model,
                                      const std::vector<std::string>& names, const Tensors& tensors,
                                      const std::vector<std::string>& parts,
                                      const std::string& rule) {
  if (names.empty() && !parts.empty()) {
    throw UsageError(area,
                     "exclude_from_weight_decay is a list of names, and the parameters have none",
                     "make the optimizer with model.named_parameters(), or with the model");
  }
  std::vector<optim::NamedParameter> parameters;
  for (size_t i = 0; i < tensors.size(); ++i) {
    parameters.push_back({{names.empty() ? "" : names[i]}, tensors[i]});
  }
  std::optional<ModelHandle> handle;
  if (!model.is_none()) handle.emplace(mirror(model));
  return optim::excluded_from_decay(
      area, handle ? &*handle : nullptr, parameters,
      {.names = parts,
       .bias_and_norm = area == "LARS" ? optim::lars_rule(rule).exclude_bias_and_norm
                                       : optim::lamb_rule(rule).exclude_bias_and_norm});
}

}  // namespace

void bind_optim(py::module_& m) {
  using namespace py::literals;
  auto o = m.def_submodule("optim", "One update of a list of parameters.");
  o.def(
      "sgd",
      [](const Tensors& values, const Tensors& gradients, double lr, double weight_decay) {
        run<optim::SgdOptions>(&optim::sgd_update, {values, gradients, {}},
                               {.lr = lr, .weight_decay = weight_decay});
      },
      "values"_a, "gradients"_a, "lr"_a, "weight_decay"_a);
  o.def(
      "momentum",
      [](const Tensors& values, const Tensors& gradients, const Tensors& velocity, double lr,
         double momentum, double weight_decay, bool nesterov) {
        run<optim::MomentumOptions>(&optim::momentum_update, {values, gradients, {velocity}},
                                    {.lr = lr,
                                     .momentum = momentum,
                                     .weight_decay = weight_decay,
                                     .use_nesterov = nesterov});
      },
      "values"_a, "gradients"_a, "velocity"_a, "lr"_a, "momentum"_a, "weight_decay"_a,
      "nesterov"_a);
  o.def(
      "adam",
      [](const Tensors& values, const Tensors& gradients, const Tensors& moment1,
         const Tensors& moment2, const std::vector<int64_t>& updates, double lr, double beta1,
         double beta2, double epsilon, double weight_decay, bool decoupled) {
        const Updates all{values, gradients, {moment1, moment2}, updates};
        if (decoupled) {
          run<optim::AdamWOptions>(&optim::adamw_update, all,
                                   {.lr = lr,
                                    .beta1 = beta1,
                                    .beta2 = beta2,
                                    .epsilon = epsilon,
                                    .weight_decay = weight_decay});
        } else {
          run<optim::AdamOptions>(&optim::adam_update, all,
                                  {.lr = lr,
                                   .beta1 = beta1,
                                   .beta2 = beta2,
                                   .epsilon = epsilon,
                                   .weight_decay = weight_decay});
        }
      },
      "values"_a, "gradients"_a, "moment1"_a, "moment2"_a, "updates"_a, "lr"_a, "beta1"_a,
      "beta2"_a, "epsilon"_a, "weight_decay"_a, "decoupled"_a);
  o.def(
      "lars",
      [](const Tensors& values, const Tensors& gradients, const Tensors& velocity,
         const std::vector<bool>& is_excluded, double lr, double momentum, double lars_coeff,
         double lars_weight_decay, double epsilon, bool nesterov, const std::string& rule) {
        run<optim::LarsOptions>(&optim::lars_update,
                                {values, gradients, {velocity}, {}, is_excluded},
                                {.lr = lr,
                                 .momentum = momentum,
                                 .lars_coeff = lars_coeff,
                                 .lars_weight_decay = lars_weight_decay,
                                 .epsilon = epsilon,
                                 .use_nesterov = nesterov,
                                 .rule = optim::lars_rule(rule)});
      },
      "values"_a, "gradients"_a, "velocity"_a, "is_excluded"_a, "lr"_a, "momentum"_a,
      "lars_coeff"_a, "lars_weight_decay"_a, "epsilon"_a, "nesterov"_a, "rule"_a);
  o.def(
      "lamb",
      [](const Tensors& values, const Tensors& gradients, const Tensors& moment1,
         const Tensors& moment2, const std::vector<int64_t>& updates,
         const std::vector<bool>& is_excluded, double lr, double beta1, double beta2,
         double epsilon, double lamb_weight_decay, const std::string& rule) {
        run<optim::LambOptions>(&optim::lamb_update,
                                {values, gradients, {moment1, moment2}, updates, is_excluded},
                                {.lr = lr,
                                 .beta1 = beta1,
                                 .beta2 = beta2,
                                 .epsilon = epsilon,
                                 .lamb_weight_decay = lamb_weight_decay,
                                 .rule = optim::lamb_rule(rule)});
      },
      "values"_a, "gradients"_a, "moment1"_a, "moment2"_a, "updates"_a, "is_excluded"_a, "lr"_a,
      "beta1"_a, "beta2"_a, "epsilon"_a, "lamb_weight_decay"_a, "rule"_a);
  o.def("excluded_from_decay", &excluded_from_decay, "area"_a, "model"_a, "names"_a, "tensors"_a,
        "parts"_a, "rule"_a);
  o.def("lars_rules", [] { return texts(optim::lars_rule_names()); });
  o.def("lamb_rules", [] { return texts(optim::lamb_rule_names()); });
}

}  // namespace fleet::python
