// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "fleet/optim/optimizer.h"

#include "bindings.h"
#include "param_groups.h"

namespace fleet::python {

/// An optimizer of fleet.optim, as C++ has it. `model` may be None where it knows its own.
std::unique_ptr<optim::Optimizer> fleet_optimizer(const py::object& python, const py::object& model,
                                                  const ParamGroups& groups, double max_grad_norm);

bool is_fleet_optimizer(const py::object& python);

/// Any other torch.optim.Optimizer: its own step(), on the gradients of the arena.
std::unique_ptr<optim::Optimizer> torch_optimizer(const py::object& python, const py::object& model,
                                                  double max_grad_norm);

}  // namespace fleet::python
