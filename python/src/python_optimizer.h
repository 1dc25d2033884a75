// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "fleet/train/distributed_optimizer.h"

#include "bindings.h"
#include "param_groups.h"

namespace fleet::python {

/// A DistributedOptimizer together with the optimizer of Python that it was made of. Those of
/// torch.optim step themselves, by their own param_groups; those of fleet.optim have a twin in C++,
/// which follows theirs.
class PythonOptimizer : public DistributedOptimizer {
 public:
  /// `groups` is null for those of torch.optim.
  PythonOptimizer(DistributedOptimizer optimizer, py::object source,
                  std::unique_ptr<ParamGroups> groups)
      : DistributedOptimizer(std::move(optimizer)),
        source_(std::move(source)),
        groups_(std::move(groups)) {}

  /// Before each call, with the GIL.
  void follow_source() {
    if (groups_) groups_->follow(*this);
  }
  double current_lr() {
    follow_source();
    return lr();
  }
  void change_lr(double value) {
    if (groups_) return groups_->set_lr(*this, value);
    set_lr(value);
  }
  /// Schedulers of torch warn when they are called before it.
  UpdateReport stepped(UpdateReport report) {
    source_.attr("_opt_called") = true;
    return report;
  }

  /// What snapshots keep beside what C++ does; null: nothing.
  ParamGroups* several_groups() const {
    return groups_ && groups_->count() > 1 ? groups_.get() : nullptr;
  }

 private:
  py::object source_;
  std::unique_ptr<ParamGroups> groups_;
};

/// `strategy` may be None, and `model` where the optimizer knows its own.
std::unique_ptr<PythonOptimizer> distributed_optimizer(const py::object& optimizer,
                                                       const py::object& strategy,
                                                       const py::object& model,
                                                       double max_grad_norm);

}  // namespace fleet::python
