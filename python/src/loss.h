// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fleet/train/loss.h"

#include "bindings.h"

namespace fleet::python {

/// The tensor that a loss closure returned; an Error for anything else.
torch::Tensor loss_tensor(const py::object& result);

/// A tensor is a mean; (sum, weight) a WeightedLoss; a list of such pairs LossTerms.
Loss loss_of(const py::object& result);

}  // namespace fleet::python
