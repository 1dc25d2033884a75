// SPDX-License-Identifier: Apache-2.0
#include "fleet/comm/world.h"

#include "bindings.h"
#include "gil.h"

namespace fleet::python {

void bind_world(py::module_& m) {
  py::class_<PaddleCloudRoleMaker>(m, "PaddleCloudRoleMaker",
                                   "The guide's role: from the environment.")
      .def(py::init([](bool is_collective) {
             return PaddleCloudRoleMaker{.is_collective = is_collective};
           }),
           py::arg("is_collective") = false);
  m.def(
      "init",
      [](const PaddleCloudRoleMaker* role, bool is_collective) {
        const ReleaseGil no_gil;
        fleet::init(role ? *role : PaddleCloudRoleMaker{.is_collective = is_collective});
      },
      py::arg("role") = nullptr, py::arg("is_collective") = true, R"(
Joins the other ranks, as fleetrun, torchrun, Slurm or MPI tell by the environment; one process
otherwise. Sets the number of threads to cores / ranks of this machine, unless OMP_NUM_THREADS is set.
)");
  m.def("is_initialized", &is_initialized, "Whether `init` was called, and `shutdown` not yet.");
  m.def("shutdown", &shutdown, Release(), "Leaves the group, after all ranks have called it.");
  m.def("worker_index", &worker_index, "The number of this rank.");
  m.def("worker_num", &worker_num, "How many ranks there are.");
  m.def("is_first_worker", &is_first_worker, "Whether this is rank 0.");
  m.def("local_worker_index", &local_worker_index, "Among the ranks of this machine.");
  m.def("local_worker_num", &local_worker_num, "Ranks of this machine.");
  m.def("worker_endpoints", &worker_endpoints, "\"host:port\" of each rank.");
  m.def("barrier_worker", &barrier_worker, Release(), "Waits for all ranks.");
  m.def("all_reduce_sum", &all_reduce_sum, Release(), py::arg("tensor"),
        "Sums a tensor over all ranks, in place: for counts and metrics.");
}

}  // namespace fleet::python
