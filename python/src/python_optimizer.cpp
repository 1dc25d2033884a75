// SPDX-License-Identifier: Apache-2.0
#include "python_optimizer.h"

#include "gil.h"
#include "inner_optimizer.h"

namespace fleet::python {

std::unique_ptr<PythonOptimizer> distributed_optimizer(const py::object& optimizer,
                                                       const DistributedStrategy* strategy,
                                                       const py::object& model,
                                                       double max_grad_norm) {
  std::unique_ptr<ParamGroups> groups;
  std::unique_ptr<optim::Optimizer> own;
  if (is_fleet_optimizer(optimizer)) {
    groups = std::make_unique<ParamGroups>(optimizer);
    own = fleet_optimizer(optimizer, model, *groups, max_grad_norm);
  } else {
    own = torch_optimizer(optimizer, model, max_grad_norm);
  }
  const auto in_force = strategy ? *strategy : DistributedStrategy();
  const auto made = [&] {
    const ReleaseGil no_gil;
    return fleet::distributed_optimizer(std::move(own), in_force);
  };
  return std::make_unique<PythonOptimizer>(made(), optimizer, std::move(groups));
}

}  // namespace fleet::python
