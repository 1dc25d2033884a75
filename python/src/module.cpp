// SPDX-License-Identifier: Apache-2.0
#include <torch/version.h>

#include "bindings.h"

PYBIND11_MODULE(_C, m) {
  m.doc() = "The C++ library, as far as Python sees it.";
  m.attr("__version__") = FLEET_VERSION;
  m.attr("torch_version") = TORCH_VERSION;
  fleet::python::bind_errors();
  fleet::python::bind_output(m);
  fleet::python::bind_plan(m);
  fleet::python::bind_budget(m);
  fleet::python::bind_fast_ops(m);
  fleet::python::bind_optim(m);
  fleet::python::bind_world(m);
  fleet::python::bind_strategy(m);
  fleet::python::bind_update_report(m);
  fleet::python::bind_distributed_optimizer(m);
  fleet::python::bind_snapshots(m);
}
