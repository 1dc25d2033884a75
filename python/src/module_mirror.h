// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fleet/core/model_handle.h"

#include "bindings.h"

namespace fleet::python {

/// A torch.nn.Module as C++ sees it: the same tensors under the same names, and modules that bear
/// the names of the Python types. It holds tensors, not the Python module.
ModelHandle mirror(const py::object& module);

}  // namespace fleet::python
