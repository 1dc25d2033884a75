// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/types.h>

namespace fleet::python {

namespace py = pybind11;

// One function per file: what it adds to the module.
void bind_budget(py::module_& m);
void bind_distributed_optimizer(py::module_& m);
void bind_errors();
void bind_fast_ops(py::module_& m);
void bind_optim(py::module_& m);
void bind_output(py::module_& m);
void bind_plan(py::module_& m);
void bind_snapshots(py::module_& m);
void bind_strategy(py::module_& m);
void bind_update_report(py::module_& m);
void bind_world(py::module_& m);

/// Calls Python, from a thread that does not hold the GIL. Out of memory comes out as C++ throws
/// it, so that C++ can try again, and without the frames that the Python exception holds.
py::object call_python(const py::object& fn);

/// Of a type: "torch.optim.RMSprop" for torch's own, "Sign" for a user's.
std::string type_name(const py::object& object);

}  // namespace fleet::python
