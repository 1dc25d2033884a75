// SPDX-License-Identifier: Apache-2.0
#include "loss.h"

#include "fleet/core/error.h"
#include "fleet/core/text/format.h"

namespace fleet::python {
namespace {

WeightedLoss weighted(const py::handle& pair) {
  const auto parts = pair.cast<py::sequence>();
  if (parts.size() != 2) {
    throw UsageError("loss", format("a weighted loss has {} parts", parts.size()),
                     "return (sum, weight)");
  }
  return {.sum = loss_tensor(parts[0]), .weight = parts[1].cast<double>()};
}

}  // namespace

torch::Tensor loss_tensor(const py::object& result) {
  if (THPVariable_Check(result.ptr())) return THPVariable_Unpack(result.ptr());
  throw UsageError("loss",
                   format("the closure returned {}, and the loss must be a tensor",
                          std::string(py::str(py::type::of(result).attr("__name__")))),
                   "return the loss itself: lambda: model(**batch).loss");
}

Loss loss_of(const py::object& result) {
  if (py::isinstance<py::tuple>(result)) return weighted(result);
  if (!py::isinstance<py::list>(result)) return loss_tensor(result);
  LossTerms terms;
  for (const auto& pair : result.cast<py::list>()) terms.terms.push_back(weighted(pair));
  return terms;
}

}  // namespace fleet::python
