// SPDX-License-Identifier: Apache-2.0
#include "fleet/train/distributed_optimizer.h"

#include <pybind11/stl.h>

#include "fleet/core/error.h"
#include "fleet/core/text/format.h"

#include "batch.h"
#include "bindings.h"
#include "gil.h"
#include "loss.h"
#include "python_optimizer.h"

namespace fleet::python {
namespace {

void require_function(const py::object& loss) {
  if (PyCallable_Check(loss.ptr()) != 0) return;
  throw UsageError("loss",
                   format("minimize() got {} for a loss, and needs a function that runs the "
                          "forward, so that strategies work on it",
                          type_name(loss)),
                   "minimize(batch, lambda micro_batch: model(**micro_batch).loss), or "
                   "minimize(lambda: model(**batch).loss)");
}

UpdateReport minimize(PythonOptimizer& self, const py::object& first, const py::object& loss) {
  require_function(loss.is_none() ? first : loss);
  self.follow_source();
  if (loss.is_none()) {
    const ReleaseGil no_gil;
    return self.DistributedOptimizer::minimize([&]() -> Loss {
      const py::gil_scoped_acquire gil;
      if (PyErr_CheckSignals() != 0) throw py::error_already_set();
      return loss_of(call_python(first));
    });
  }
  const Batch batch(first);
  const ReleaseGil no_gil;
  return self.minimize(batch, [&](const Batch& micro_batch) -> Loss {
    const py::gil_scoped_acquire gil;
    if (PyErr_CheckSignals() != 0) throw py::error_already_set();
    return loss_of(call_python(py::cpp_function([&] { return loss(micro_batch.tree()); })));
  });
}

// `with optimizer.forward():`
class ForwardContext {
 public:
  ForwardContext(DistributedOptimizer& optimizer, int64_t samples)
      : optimizer_(optimizer), samples_(samples) {}
  void enter() { scope_.emplace(optimizer_.forward(samples_)); }
  void exit(const py::args& /*error*/) { scope_.reset(); }

 private:
  DistributedOptimizer& optimizer_;
  int64_t samples_;
  std::optional<DistributedOptimizer::ForwardScope> scope_;
};

// `with optimizer.autocast():`
class AutocastContext {
 public:
  explicit AutocastContext(DistributedOptimizer& optimizer) : optimizer_(optimizer) {}
  void enter() { scope_.reset(new precision::AutocastScope(optimizer_.autocast())); }
  void exit(const py::args& /*error*/) { scope_.reset(); }

 private:
  DistributedOptimizer& optimizer_;
  std::unique_ptr<precision::AutocastScope> scope_;
};

}  // namespace

void bind_distributed_optimizer(py::module_& m) {
  py::class_<ForwardContext>(m, "OptimizerForward", "Made by DistributedOptimizer.forward.")
      .def("__enter__", &ForwardContext::enter)
      .def("__exit__", &ForwardContext::exit);

  py::class_<AutocastContext>(m, "OptimizerAutocast", "Made by DistributedOptimizer.autocast.")
      .def("__enter__", &AutocastContext::enter)
      .def("__exit__", &AutocastContext::exit);

  py::class_<PythonOptimizer>(m, "DistributedOptimizer", R"(
Trains one model as a strategy says. Made by fleet.distributed_optimizer.

    report = optimizer.minimize(batch, lambda part: loss_of(model(part["x"]), part["y"]))

All ranks make the same calls. The closure returns the mean loss, or (sum, weight), or a list of such
pairs. The model must not be moved, converted or loaded afterwards. Schedulers of torch may change the
learning rates in the param_groups of the optimizer that it was made of.
)")
      .def(
          "minimize",
          [](PythonOptimizer& self, const py::object& batch, const py::object& loss) {
            return self.stepped(minimize(self, batch, loss));
          },
          py::arg("batch"), py::arg("loss") = py::none(), R"(
minimize(batch, loss): forward, backward, reduce, update. `batch`: tensors in tuples, lists or
dictionaries, samples first; gradient merge and a lack of memory split it, and loss(part) gets the parts.
minimize(loss): the same for a closure without arguments; with gradient merge, k_steps calls make an
update.
)")
      .def(
          "forward",
          [](PythonOptimizer& self, int64_t samples) { return ForwardContext(self, samples); },
          py::keep_alive<0, 1>(), py::kw_only(), py::arg("samples") = 0,
          "Around the forward of a loss that goes to `backward`: amp, recompute.")
      .def(
          "backward",
          [](PythonOptimizer& self, const py::object& loss, bool is_last) {
            self.follow_source();
            const Loss value = loss_of(loss);
            const ReleaseGil no_gil;
            return self.backward(value, {.is_last = is_last});
          },
          py::arg("loss"), py::kw_only(), py::arg("is_last") = false,
          "Adds the gradients of one micro-batch to the window.")
      .def(
          "step",
          [](PythonOptimizer& self) {
            self.follow_source();
            const auto step = [&] {
              const ReleaseGil no_gil;
              return self.step();
            };
            return self.stepped(step());
          },
          "Reduces the gradients of the window, and updates.")
      .def(
          "autocast", [](PythonOptimizer& self) { return AutocastContext(self); },
          py::keep_alive<0, 1>(),
          "Around an evaluation: the precision in which `minimize` runs its closures.")
      .def("zero_grad", &DistributedOptimizer::zero_grad, "Forgets the window.")
      .def(
          "end_epoch",
          [](PythonOptimizer& self) {
            self.follow_source();
            const ReleaseGil no_gil;
            return self.end_epoch();
          },
          "Updates with the micro-batches of an open window; with local SGD, averages.")
      .def("sync", &DistributedOptimizer::sync, Release(), "With local SGD, averages now.")
      .def_property("lr", &PythonOptimizer::current_lr, &PythonOptimizer::change_lr,
                    "learning rate")
      .def_property_readonly("updates", &DistributedOptimizer::updates, "so far")
      .def_property_readonly("skipped_updates", &DistributedOptimizer::skipped_updates,
                             "since loss or gradient was not finite")
      .def_property_readonly(
          "strategy", [](const PythonOptimizer& self) { return self.strategy(); },
          py::return_value_policy::move, "A copy of the one in force.");

  m.def("distributed_optimizer", &distributed_optimizer, py::arg("optimizer"),
        py::arg("strategy") = py::none(), py::kw_only(), py::arg("model") = py::none(),
        py::arg("max_grad_norm") = 0.0, R"(
Turns an optimizer into a distributed one: prints the strategy in force, and gives all ranks the
parameters and buffers of rank 0.

    optimizer = fleet.distributed_optimizer(fleet.optim.Momentum(model, lr=0.1), strategy)

    optimizer = torch.optim.RMSprop(model.parameters(), lr=0.01)
    optimizer = fleet.distributed_optimizer(optimizer, strategy, model=model)

optimizer: of fleet.optim; or any torch.optim.Optimizer, which keeps its own step(), param_groups and
    state_dict().
model: needed where the optimizer was not made with it.
max_grad_norm: clips all gradients together to this norm; 0: does not.
)");
}

}  // namespace fleet::python
