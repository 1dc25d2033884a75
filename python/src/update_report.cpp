// SPDX-License-Identifier: Apache-2.0
#include "fleet/train/update/update_report.h"

#include <pybind11/stl.h>

#include "fleet/core/text/format.h"

#include "bindings.h"
#include "gil.h"

namespace fleet::python {

void bind_update_report(py::module_& m) {
  py::class_<UpdateReport>(m, "UpdateReport", "What one call of minimize or step did.")
      .def_readonly("call", &UpdateReport::call, "calls of minimize so far")
      .def_readonly("update", &UpdateReport::update, "updates so far")
      .def_readonly("updated", &UpdateReport::updated, "whether the parameters were updated")
      .def_readonly("skipped", &UpdateReport::skipped,
                    "loss or gradient not finite: nothing changed but the loss scale")
      .def_readonly("micro_batches", &UpdateReport::micro_batches,
                    "of this rank, so far in this accumulation window")
      .def_readonly("loss", &UpdateReport::loss, "mean over the samples of all ranks")
      .def_readonly("weight", &UpdateReport::weight,
                    "of the loss: samples, or what the closure returned")
      .def_readonly("samples", &UpdateReport::samples, "of this rank; 0 with minimize(loss)")
      .def_readonly("lr", &UpdateReport::lr, "learning rate of the update")
      .def_readonly("loss_scale", &UpdateReport::loss_scale, "of amp; 1 without it")
      .def_readonly("synced", &UpdateReport::synced, "whether local SGD averaged the parameters")
      .def_readonly("stop", &UpdateReport::stop, "whether the training was asked to stop")
      .def_readonly("gradient_norm", &UpdateReport::gradient_norm,
                    "before clipping; None: not computed")
      .def_readonly("seconds", &UpdateReport::seconds, "that the call took")
      .def_readonly("exposed_communication_s", &UpdateReport::exposed_communication_s,
                    "waited for other ranks")
      .def_readonly("memory", &UpdateReport::memory, "a MemoryReport")
      .def("__repr__", [](const UpdateReport& self) {
        return format("UpdateReport(update={}, loss={:.6g}, lr={:.6g}, updated={})", self.update,
                      self.loss, self.lr, self.updated ? "True" : "False");
      });
  m.def("log_step", &log_step, Release(), py::arg("report"),
        "Prints the guide's step line on rank 0.");
}

}  // namespace fleet::python
