// SPDX-License-Identifier: Apache-2.0
#include "module_mirror.h"

#include <torch/nn/module.h>

#include "fleet/core/error.h"
#include "fleet/core/text/format.h"

namespace fleet::python {
namespace {

class Mirror final : public torch::nn::Module {
 public:
  explicit Mirror(const py::object& module)
      : torch::nn::Module(py::type::of(module).attr("__name__").cast<std::string>()) {
    for (const auto& [name, tensor] : module.attr("_parameters").cast<py::dict>()) {
      if (tensor.is_none()) continue;
      const auto parameter = tensor.cast<torch::Tensor>();
      register_parameter(name.cast<std::string>(), parameter, parameter.requires_grad());
    }
    for (const auto& [name, tensor] : module.attr("_buffers").cast<py::dict>()) {
      if (!tensor.is_none())
        register_buffer(name.cast<std::string>(), tensor.cast<torch::Tensor>());
    }
    for (const auto& [name, child] : module.attr("_modules").cast<py::dict>()) {
      if (child.is_none()) continue;
      register_module(name.cast<std::string>(),
                      std::make_shared<Mirror>(py::reinterpret_borrow<py::object>(child)));
    }
  }
};

}  // namespace

ModelHandle mirror(const py::object& module) {
  if (!py::isinstance(module, py::module_::import("torch").attr("nn").attr("Module"))) {
    throw UsageError(
        "optim",
        "the optimizer knows its parameters and not the model, whose names, buffers "
        "and modules strategies need",
        "make it with the model, fleet.optim.Adam(model, lr=...), or pass model=model to "
        "fleet.distributed_optimizer");
  }
  return ModelHandle(std::make_shared<Mirror>(module));
}

}  // namespace fleet::python
