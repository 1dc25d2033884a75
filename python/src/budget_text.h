// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "bindings.h"

namespace fleet::python {

/// A budget as C++ reads it: text as it is, and a whole number as bytes. With the GIL.
std::string budget_text(const py::object& budget);

}  // namespace fleet::python
