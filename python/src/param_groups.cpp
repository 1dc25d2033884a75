// SPDX-License-Identifier: Apache-2.0
#include "param_groups.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "fleet/core/error.h"
#include "fleet/core/text/format.h"

namespace fleet::python {
namespace {

std::string text(const py::handle& object) { return py::str(object); }

// Of the tensors that gradients are computed for, all their names.
std::map<const void*, std::vector<std::string>> names_of(const ModelHandle& model) {
  std::map<const void*, std::vector<std::string>> names;
  for (const auto& [name, tensor] : model.parameters()) {
    if (tensor.requires_grad()) names[tensor.unsafeGetTensorImpl()].push_back(name);
  }
  return names;
}

// That rates were multiplied by the same factor, and rounded.
bool is_same_scale(double a, double b) { return std::abs(a - b) <= 1e-6 * std::abs(b); }

}  // namespace

ParamGroups::ParamGroups(py::object source) : source_(std::move(source)) {
  check_state();
  const auto groups = source_.attr("param_groups").cast<py::list>();
  for (size_t g = 0; g < groups.size(); ++g) {
    py::dict options;
    for (const auto& [name, value] : source_.attr("defaults").cast<py::dict>()) {
      if (name.cast<std::string>() != "lr" && group(g).contains(name)) {
        options[name] = group(g)[name];
      }
    }
    options_.push_back(options);
  }
  std::vector<std::string> problems;
  const auto decay = decay_key();
  for (size_t g = 1; g < options_.size(); ++g) {
    for (const auto& [name, value] : options_[g]) {
      const py::object first = options_[0][name];
      if (name.cast<std::string>() == decay || first.equal(value)) continue;
      problems.push_back(format("'{}' is {} in group 0 and {} in group {}", text(name), text(first),
                                text(value), g));
    }
  }
  if (!problems.empty()) {
    throw UsageError::all("optim",
                          format("strategies take param_groups that differ in 'lr' and '{}', and "
                                 "these differ in more:",
                                 decay),
                          problems,
                          "give all groups the same, or use the optimizer of torch.optim");
  }
  rates_ = read_rates();
  // A warm-up's first rates are 0, and schedulers note those that they begin with.
  auto rates = rates_;
  for (size_t g = 0; g < rates.size(); ++g) {
    if (lr() == 0 && group(g).contains("initial_lr")) {
      rates[g] = group(g)["initial_lr"].cast<double>();
    }
  }
  for (const double rate : rates) scales_.push_back(rate_of(rates) > 0 ? rate / rate_of(rates) : 1);
  initial_scales_ = scales_;
}

double ParamGroups::rate_of(const std::vector<double>& rates) {
  const auto found = std::ranges::find_if(rates, [](double rate) { return rate > 0; });
  return found == rates.end() ? rates.front() : *found;
}

py::dict ParamGroups::group(size_t index) const {
  return source_.attr("param_groups")[py::int_(index)].cast<py::dict>();
}

std::string ParamGroups::decay_key() const {
  for (const auto* key : {"lars_weight_decay", "lamb_weight_decay"}) {
    if (options_.front().contains(key)) return key;
  }
  return "weight_decay";
}

std::vector<torch::Tensor> ParamGroups::tensors_of(size_t index) const {
  std::vector<torch::Tensor> tensors;
  for (const auto& tensor : group(index)["params"]) {
    tensors.push_back(tensor.cast<torch::Tensor>());
  }
  return tensors;
}

std::vector<torch::Tensor> ParamGroups::parameters() const {
  std::vector<torch::Tensor> all;
  for (size_t g = 0; g < count(); ++g) {
    for (auto& tensor : tensors_of(g)) all.push_back(std::move(tensor));
  }
  return all;
}

// ParameterGroup fits by parts of names, the first one that fits: a group per name, the longest
// first, so that a name which is part of another comes after it.
std::vector<optim::ParameterGroup> ParamGroups::for_cpp(
    const ModelHandle& model, const std::unordered_set<const void*>& excluded) const {
  const auto names = names_of(model);
  const auto key = decay_key();
  const auto decay_of = [&](size_t g) { return options_[g][py::str(key)].cast<double>(); };
  std::vector<optim::ParameterGroup> result;
  for (size_t g = 0; g < count(); ++g) {
    for (const auto& tensor : tensors_of(g)) {
      const auto* const impl = tensor.unsafeGetTensorImpl();
      const auto found = names.find(impl);
      if (found == names.end()) continue;
      optim::ParameterGroup own{.lr_scale = scales_[g]};
      if (decay_of(g) != decay_of(0) && !excluded.contains(impl)) {
        own.weight_decay = decay_of(g);
        if (key != "weight_decay") own.use_trust_ratio = true;  // as these optimizers do alone
      }
      for (const auto& name : found->second) {
        own.names = {name};
        result.push_back(own);
      }
    }
  }
  std::ranges::stable_sort(result, std::ranges::greater(), [](const optim::ParameterGroup& group) {
    return group.names.front().size();
  });
  return result;
}

void ParamGroups::check_parameters(const ModelHandle& model) const {
  const auto names = names_of(model);
  std::set<const void*> known, grouped;
  for (const auto& [name, tensor] : model.parameters()) known.insert(tensor.unsafeGetTensorImpl());
  std::vector<std::string> problems;
  for (size_t g = 0; g < count(); ++g) {
    const auto tensors = tensors_of(g);
    for (size_t p = 0; p < tensors.size(); ++p) {
      grouped.insert(tensors[p].unsafeGetTensorImpl());
      if (known.contains(tensors[p].unsafeGetTensorImpl())) continue;
      problems.push_back(
          format("tensor {} of param_groups[{}] is no parameter of the model", p, g));
    }
  }
  for (const auto& [impl, own] : names) {
    if (grouped.contains(impl)) continue;
    problems.push_back(format("'{}' is trained, and in no group", own.front()));
  }
  if (problems.empty()) return;
  throw UsageError::all("optim", "the param_groups are not those of the model:", problems,
                        "make the optimizer with the parameters of this model, and set "
                        "requires_grad_(False) on those that are not to be trained");
}

void ParamGroups::check_state() const {
  const auto state_count = py::len(source_.attr("state"));
  if (state_count == 0) return;
  throw UsageError("optim",
                   format("the optimizer has state of its own for {} parameters, from "
                          "load_state_dict or its own step(), which strategies do not use",
                          state_count),
                   "make it anew with the model, and leave steps to the distributed optimizer; "
                   "fleet.Snapshots saves and resumes its state");
}

void ParamGroups::check_options() const {
  for (size_t g = 0; g < count(); ++g) {
    for (const auto& [name, value] : options_[g]) {
      const py::object now = group(g)[name];
      if (now.equal(value)) continue;
      throw UsageError("optim",
                       format("'{}' of the optimizer's param_groups is {} now, and strategies keep "
                              "using {}: of param_groups only the learning rate is read",
                              text(name), text(now), text(value)),
                       "give it its value before fleet.distributed_optimizer");
    }
  }
}

std::vector<double> ParamGroups::read_rates() const {
  std::vector<double> rates;
  for (const auto& each : source_.attr("param_groups").cast<py::list>()) {
    rates.push_back(py::float_(each.cast<py::dict>()["lr"]).cast<double>());
  }
  return rates;
}

void ParamGroups::write_rates(double lr) {
  for (size_t g = 0; g < count(); ++g) group(g)["lr"] = rates_[g] = lr * scales_[g];
}

// The rates that were read reach C++.
void ParamGroups::apply(DistributedOptimizer& optimizer) {
  optimizer.set_lr(lr());
  if (count() == 1 || lr() == 0) return;  // a warm-up's first rate tells no ratios
  std::unordered_map<const void*, double> scales;
  for (size_t g = 0; g < count(); ++g) {
    scales_[g] = rates_[g] / lr();
    for (const auto& tensor : tensors_of(g)) scales[tensor.unsafeGetTensorImpl()] = scales_[g];
  }
  if (auto* const own = dynamic_cast<RateScales*>(&optimizer.optimizer())) {
    own->set_rate_scales(scales);
    return;
  }
  for (size_t g = 0; g < count(); ++g) {
    if (is_same_scale(scales_[g], initial_scales_[g])) continue;
    throw UsageError("optim",
                     format("the rate of param_groups[{}] is {} times that of the first now, and "
                            "was {} times: {} of the strategy moves all rates in proportion",
                            g, scales_[g], initial_scales_[g], optimizer.optimizer().name()),
                     "use fleet.optim.Lars or fleet.optim.Lamb instead of the strategy, or a "
                     "schedule that multiplies all rates");
  }
}

void ParamGroups::follow(DistributedOptimizer& optimizer) {
  check_state();
  if (source_.attr("param_groups").cast<py::list>().size() != count()) {
    throw UsageError("optim",
                     format("the optimizer had {} param_groups when it was made distributed, and "
                            "has {} now",
                            count(), py::len(source_.attr("param_groups"))),
                     "add all groups before fleet.distributed_optimizer");
  }
  check_options();
  const auto now = read_rates();
  if (now != rates_) {
    rates_ = now;
    apply(optimizer);
  } else if (optimizer.lr() != lr()) {
    write_rates(optimizer.lr());
  }
}

void ParamGroups::set_lr(DistributedOptimizer& optimizer, double lr) {
  optimizer.set_lr(lr);
  write_rates(lr);
}

void ParamGroups::restore_rates(DistributedOptimizer& optimizer, const std::vector<double>& rates) {
  if (rates.size() != count()) return;  // another number of groups was refused before
  rates_ = rates;
  for (size_t g = 0; g < count(); ++g) group(g)["lr"] = rates_[g];
  apply(optimizer);
}

}  // namespace fleet::python
