// SPDX-License-Identifier: Apache-2.0
#include "python_optimizer.h"

#include "fleet/core/error.h"
#include "fleet/core/text/format.h"

#include "gil.h"
#include "inner_optimizer.h"

namespace fleet::python {

std::unique_ptr<PythonOptimizer> distributed_optimizer(const py::object& optimizer,
                                                       const py::object& strategy,
                                                       const py::object& model,
                                                       double max_grad_norm) {
  if (!strategy.is_none() && !py::isinstance<DistributedStrategy>(strategy)) {
    throw UsageError(
        "strategy", format("distributed_optimizer() got {} for a strategy", type_name(strategy)),
        "fleet.distributed_optimizer(optimizer, strategy, model=model) with strategy = "
        "fleet.DistributedStrategy(); strategy.amp = True");
  }
  std::unique_ptr<ParamGroups> groups;
  std::unique_ptr<optim::Optimizer> own;
  if (is_fleet_optimizer(optimizer)) {
    groups = std::make_unique<ParamGroups>(optimizer);
    own = fleet_optimizer(optimizer, model, *groups, max_grad_norm);
  } else {
    own = torch_optimizer(optimizer, model, max_grad_norm);
  }
  const auto in_force =
      strategy.is_none() ? DistributedStrategy() : strategy.cast<const DistributedStrategy&>();
  const auto made = [&] {
    const ReleaseGil no_gil;
    return fleet::distributed_optimizer(std::move(own), in_force);
  };
  return std::make_unique<PythonOptimizer>(made(), optimizer, std::move(groups));
}

}  // namespace fleet::python
