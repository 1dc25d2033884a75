// SPDX-License-Identifier: Apache-2.0
#include "fleet/optim/torch_optimizer.h"

#include <cstring>

#include <torch/optim/optimizer.h>
#include <torch/serialize/archive.h>

#include "fleet/core/error.h"
#include "fleet/core/text/format.h"
#include "fleet/optim/torch_optimizer_name.h"

#include "gil.h"
#include "inner_optimizer.h"
#include "module_mirror.h"
#include "state_bytes.h"

namespace fleet::python {
namespace {

// The rate of one of its param_groups, which Python code may change at any time.
class GroupRate final : public torch::optim::OptimizerOptions {
 public:
  GroupRate(SharedObject optimizer, size_t group)
      : optimizer_(std::move(optimizer)), group_(group) {}
  std::unique_ptr<OptimizerOptions> clone() const override {
    return std::make_unique<GroupRate>(*this);
  }
  double get_lr() const override {
    const py::gil_scoped_acquire gil;
    return py::float_(py::object(group()["lr"])).cast<double>();
  }
  void set_lr(const double lr) override {
    const py::gil_scoped_acquire gil;
    const py::object now = group()["lr"];
    if (THPVariable_Check(now.ptr())) {  // others may hold it, so it stays the same tensor
      now.attr("fill_")(lr);
    } else {
      group()["lr"] = lr;
    }
  }

 private:
  py::dict group() const {
    return optimizer_->attr("param_groups")[py::int_(group_)].cast<py::dict>();
  }

  SharedObject optimizer_;
  size_t group_;
};

std::vector<torch::optim::OptimizerParamGroup> groups_of(const SharedObject& optimizer) {
  std::vector<torch::optim::OptimizerParamGroup> groups;
  for (const auto& group : optimizer->attr("param_groups").cast<py::list>()) {
    std::vector<torch::Tensor> tensors;
    for (const auto& tensor : group.cast<py::dict>()["params"]) {
      tensors.push_back(tensor.cast<torch::Tensor>());
    }
    groups.emplace_back(std::move(tensors), std::make_unique<GroupRate>(optimizer, groups.size()));
  }
  return groups;
}

// An optimizer of Python as C++ knows them. Called without the GIL.
class Adapter final : public torch::optim::Optimizer, public optim::TorchOptimizerName {
 public:
  explicit Adapter(const SharedObject& python)
      : Optimizer(groups_of(python), std::make_unique<GroupRate>(python, 0)),
        python_(python),
        name_(python::type_name(*python)) {}

  std::string type_name() const override { return name_; }

  torch::Tensor step(LossClosure /*closure*/) override {
    const py::gil_scoped_acquire gil;
    flush_lines();
    bring_parameters();
    python_->attr("step")();
    return {};
  }

  void save(torch::serialize::OutputArchive& archive) const override {
    const py::gil_scoped_acquire gil;
    const auto bytes = state_bytes(*python_);
    if (!is_checked_) check_state_bytes(name_, bytes);
    is_checked_ = is_checked_ || py::len(python_->attr("state")) > 0;
    archive.write("state_dict", bytes);
  }

  void load(torch::serialize::InputArchive& archive) override {
    torch::Tensor bytes;
    archive.read("state_dict", bytes);
    const py::gil_scoped_acquire gil;
    bring_parameters();
    set_state_bytes(name_, *python_, bytes);
  }

 private:
  // Masters of bf16 parameters took their place in C++'s groups.
  void bring_parameters() {
    const auto groups = python_->attr("param_groups").cast<py::list>();
    if (groups.size() != param_groups().size()) {
      throw UsageError("optim",
                       format("{} had {} param_groups when it was made distributed, and has {} now",
                              name_, param_groups().size(), groups.size()),
                       "add all groups before fleet.distributed_optimizer");
    }
    const auto state = python_->attr("state");
    for (size_t g = 0; g < groups.size(); ++g) {
      const auto own = groups[g].cast<py::dict>()["params"].cast<py::list>();
      const auto& ours = param_groups()[g].params();
      for (size_t p = 0; p < ours.size(); ++p) {
        const py::object before = own[p];
        if (before.cast<torch::Tensor>().is_same(ours[p])) continue;
        const auto master = py::cast(ours[p]);
        if (state.attr("__contains__")(before).cast<bool>()) {
          state[master] = state.attr("pop")(before);
        }
        own[p] = master;
      }
    }
  }

  SharedObject python_;
  std::string name_;
  mutable bool is_checked_ = false;  // that its state can be read again
};

bool needs_closure(const py::object& python) {
  const auto torch_optim = py::module_::import("torch.optim");
  if (py::isinstance(python, torch_optim.attr("LBFGS"))) return true;
  const auto inspect = py::module_::import("inspect");
  for (const auto& parameter :
       inspect.attr("signature")(python.attr("step")).attr("parameters").attr("values")()) {
    if (parameter.attr("name").cast<std::string>() != "closure") continue;
    return parameter.attr("default").is(inspect.attr("Parameter").attr("empty"));
  }
  return false;
}

}  // namespace

std::unique_ptr<optim::Optimizer> torch_optimizer(const py::object& python, const py::object& model,
                                                  double max_grad_norm) {
  const auto torch_type = py::module_::import("torch.optim").attr("Optimizer");
  if (!py::isinstance(python, torch_type)) {
    throw UsageError("optim", format("{} is no optimizer", type_name(python)),
                     "fleet.distributed_optimizer(optimizer, strategy, model=model) with an "
                     "optimizer of fleet.optim or torch.optim, or a subclass of "
                     "torch.optim.Optimizer");
  }
  if (model.is_none()) {
    throw UsageError("optim",
                     format("{} knows its parameters and not the model, whose names, buffers and "
                            "modules strategies need",
                            type_name(python)),
                     "pass it too: fleet.distributed_optimizer(optimizer, strategy, model=model)");
  }
  if (needs_closure(python)) {
    throw UsageError("optim",
                     format("{} evaluates its closure many times per step, and an update here has "
                            "one forward and backward, shared by all ranks",
                            type_name(python)),
                     "use an optimizer that steps from one gradient, such as torch.optim.RMSprop "
                     "or fleet.optim.Adam");
  }
  return std::make_unique<optim::TorchOptimizer>(
      mirror(model), std::make_shared<Adapter>(SharedObject(python)),
      optim::TorchOptimizerOptions{.max_grad_norm = max_grad_norm});
}

}  // namespace fleet::python
