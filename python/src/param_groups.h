// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "fleet/optim/parameter_group.h"
#include "fleet/train/distributed_optimizer.h"

#include "bindings.h"

namespace fleet::python {

/// An optimizer of Fleet whose rates can change parameter by parameter.
class RateScales {
 public:
  virtual ~RateScales() = default;
  /// By the tensor (its TensorImpl), times the optimizer's own rate.
  virtual void set_rate_scales(const std::unordered_map<const void*, double>& scales) = 0;
};

template <typename Base>
class WithRateScales final : public Base, public RateScales {
 public:
  using Base::Base;
  void set_rate_scales(const std::unordered_map<const void*, double>& scales) override {
    const auto spans = this->arena().spans();
    for (size_t i = 0; i < spans.size(); ++i) {
      const auto found = scales.find(spans[i].parameter.unsafeGetTensorImpl());
      if (found != scales.end()) this->settings_[i].lr_scale = found->second;
    }
  }
};

/// The param_groups of an optimizer of fleet.optim, which schedulers of torch write to. What a
/// strategy cannot follow is an error. With the GIL.
class ParamGroups {
 public:
  /// Throws where it has state of its own, or where groups differ in what they may not.
  explicit ParamGroups(py::object source);

  /// That of the first group that has one: rates of the others are multiples of it.
  double lr() const { return rate_of(rates_); }
  py::dict first() const { return group(0); }
  size_t count() const { return rates_.size(); }

  /// As C++ has them, when the optimizer is made. Of LARS and LAMB, `excluded` has the tensors that
  /// are left out of decay whatever their group says.
  std::vector<optim::ParameterGroup> for_cpp(
      const ModelHandle& model, const std::unordered_set<const void*>& excluded = {}) const;
  /// Of weight decay in the groups, by which they may differ.
  std::string decay_key() const;
  /// All parameters that are trained are in a group, and groups hold no others.
  void check_parameters(const ModelHandle& model) const;
  std::vector<torch::Tensor> parameters() const;

  /// Before each call. The rates are those of whoever has changed them last.
  void follow(DistributedOptimizer& optimizer);
  void set_lr(DistributedOptimizer& optimizer, double lr);

  /// For snapshots: rates that no single number tells.
  std::vector<double> rates() const { return rates_; }
  void restore_rates(DistributedOptimizer& optimizer, const std::vector<double>& rates);

 private:
  static double rate_of(const std::vector<double>& rates);
  py::dict group(size_t index) const;
  std::vector<torch::Tensor> tensors_of(size_t group) const;
  std::vector<double> read_rates() const;
  void write_rates(double lr);
  void apply(DistributedOptimizer& optimizer);
  void check_state() const;
  void check_options() const;

  py::object source_;
  std::vector<py::dict> options_;  // of each group but the rate
  std::vector<double> rates_;      // of each group, as last seen
  std::vector<double> scales_;     // to lr()
  std::vector<double> initial_scales_;
};

}  // namespace fleet::python
