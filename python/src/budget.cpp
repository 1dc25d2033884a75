// SPDX-License-Identifier: Apache-2.0
#include <optional>

#include <c10/core/CPUAllocator.h>

#include "fleet/core/error.h"
#include "fleet/core/text/byte_size.h"
#include "fleet/core/text/format.h"
#include "fleet/core/torch/interception.h"
#include "fleet/memory/allocator/budget_allocator.h"
#include "fleet/memory/checkpoint.h"
#include "fleet/memory/recompute.h"
#include "fleet/memory/replay/replay.h"
#include "fleet/train/memory_budget.h"

#include "bindings.h"
#include "budget_text.h"
#include "gil.h"
#include "loss.h"
#include "plan_view.h"

namespace fleet::python {
namespace {

// Python's own generators, which a forward may use: `random` and NumPy's.
class PythonGenerators {
 public:
  PythonGenerators() : random_(py::module_::import("random")), state_(random_.attr("getstate")()) {
    const auto modules = py::module_::import("sys").attr("modules");
    if (!modules.contains("numpy")) return;
    numpy_ = modules["numpy"].attr("random");
    numpy_state_ = numpy_.attr("get_state")();
  }
  void restore() const {
    random_.attr("setstate")(state_);
    if (numpy_) numpy_.attr("set_state")(numpy_state_);
  }

 private:
  py::object random_, state_, numpy_, numpy_state_;
};

// Other ranks do not repeat the collectives that a forward or backward of DDP has begun.
void refuse_to_repeat_collectives() {
  const auto modules = py::module_::import("sys").attr("modules");
  if (!modules.contains("torch.nn.parallel.distributed")) return;
  const auto group = py::module_::import("torch").attr("distributed");
  if (!group.attr("is_available")().cast<bool>() || !group.attr("is_initialized")().cast<bool>() ||
      group.attr("get_world_size")().cast<int>() == 1) {
    return;
  }
  const auto ddp = modules["torch.nn.parallel.distributed"].attr("DistributedDataParallel");
  for (const auto& object : py::module_::import("gc").attr("get_objects")()) {
    if (!py::isinstance(object, ddp)) continue;
    throw Error("memory",
                "this step ran out of memory within the budget, and is not tried again by another "
                "plan: under DistributedDataParallel its collectives have begun, and the other "
                "ranks would not repeat them",
                "raise the budget; or train by fleet.distributed_optimizer with "
                "recompute_configs = {\"memory_budget\": ...}, whose ranks try again together");
  }
}

// Called without the GIL.
torch::Tensor step(MemoryBudget& budget, const py::object& loss, int64_t samples) {
  struct Call {
    explicit Call(const py::object& fn) : fn(fn) {}
    py::object fn, result;
    PythonGenerators generators;
  };
  std::optional<Call> call;
  {
    const py::gil_scoped_acquire gil;
    if (PyCallable_Check(loss.ptr()) == 0) {
      throw UsageError("memory",
                       format("step() got {}, and needs a function that runs the forward, so that "
                              "the budget is in force there",
                              type_name(loss)),
                       "budget.step(lambda: model(**batch).loss)");
    }
    call.emplace(loss);
  }
  struct Free {
    std::optional<Call>& call;
    ~Free() {
      const py::gil_scoped_acquire gil;
      call.reset();
    }
  } const free{call};
  const auto forward = [&] {
    const py::gil_scoped_acquire gil;
    if (PyErr_CheckSignals() != 0) throw py::error_already_set();
    call->result = call_python(call->fn);
    return loss_tensor(std::exchange(call->result, py::none()));
  };
  const auto before_retry = [&] {
    const py::gil_scoped_acquire gil;
    refuse_to_repeat_collectives();
    PyGC_Collect();  // frames that refer to each other hold tensors
    call->generators.restore();
  };
  return budget.step(forward, {.samples = samples, .before_retry = before_retry});
}

// `with budget.forward():`
class ForwardContext {
 public:
  ForwardContext(std::shared_ptr<MemoryBudget> budget, int64_t samples)
      : budget_(std::move(budget)), samples_(samples) {}
  void enter() { forward_ = budget_->forward(samples_); }
  void exit(const py::object& type, const py::object& /*value*/, const py::object& /*traceback*/) {
    const auto forward = std::move(forward_);
    if (forward && type.is_none()) forward->finish();
  }

 private:
  std::shared_ptr<MemoryBudget> budget_;
  int64_t samples_;
  std::unique_ptr<MemoryBudget::Forward> forward_;
};

std::string text_of(const MemoryReport& report) {
  const auto bytes = [](int64_t n) { return n > 0 ? byte_size_text(n) : std::string("unknown"); };
  return format("MemoryReport(measured_peak={}, budget={}, plain_peak={}, predicted_peak={})",
                bytes(report.measured_peak), bytes(report.budget), bytes(report.plain_peak),
                bytes(report.predicted_peak));
}

// Kernels that torch.compile made write to tensors past the dispatcher. They are called from files
// of the compiler, a few frames up.
bool is_in_compiled_code() {
  if (PyGILState_Check() == 0) {
    const py::gil_scoped_acquire gil;
    return is_in_compiled_code();
  }
  constexpr int kFrames = 12;
  auto frame = py::reinterpret_borrow<py::object>(reinterpret_cast<PyObject*>(PyEval_GetFrame()));
  for (int i = 0; i < kFrames && frame; ++i) {
    auto* const raw = reinterpret_cast<PyFrameObject*>(frame.ptr());
    const auto code =
        py::reinterpret_steal<py::object>(reinterpret_cast<PyObject*>(PyFrame_GetCode(raw)));
    const auto name = code.attr("co_filename");
    const char* const file = PyUnicode_AsUTF8(name.ptr());
    const std::string_view path(file ? file : "");
    if (path.find("torch/_inductor/") != path.npos || path.find("/_aot_autograd/") != path.npos) {
      return true;
    }
    frame = py::reinterpret_steal<py::object>(reinterpret_cast<PyObject*>(PyFrame_GetBack(raw)));
  }
  return false;
}

py::object recompute(const py::object& fn, const py::args& args, const py::kwargs& kwargs) {
  memory::RecomputeScope scope;
  auto result = fn(*args, **kwargs);
  scope.finish();
  return result;
}

}  // namespace

void bind_budget(py::module_& m) {
  compat::set_opaque_code(&is_in_compiled_code);

  py::class_<MemoryReport>(m, "MemoryReport", "What the last step took of memory, in bytes.")
      .def_readonly("plain_peak", &MemoryReport::plain_peak,
                    "what plain training takes, predicted from a measured step; 0: not known yet")
      .def_readonly("budget", &MemoryReport::budget, "in force; 0: not known yet")
      .def_readonly("predicted_peak", &MemoryReport::predicted_peak,
                    "of the plan that was followed; 0: none")
      .def_readonly("measured_peak", &MemoryReport::measured_peak, "of the step")
      .def_readonly("now", &MemoryReport::now, "counted after the step")
      .def_readonly("segments", &MemoryReport::segments, "that backward recomputed")
      .def_readonly("evicted", &MemoryReport::evicted, "values evicted by a plan")
      .def_readonly("evicted_bytes", &MemoryReport::evicted_bytes, "of them")
      .def_readonly("not_recomputable_bytes", &MemoryReport::not_recomputable_bytes,
                    "of values that no op can recompute")
      .def_readonly("offloaded_bytes", &MemoryReport::offloaded_bytes, "written to the file")
      .def_readonly("fetched_bytes", &MemoryReport::fetched_bytes, "read from it")
      .def_readonly("offload_stall_s", &MemoryReport::offload_stall_s, "waited for the disk")
      .def("__repr__", &text_of);

  py::class_<ForwardContext>(m, "ForwardContext", "Made by MemoryBudget.forward.")
      .def("__enter__", &ForwardContext::enter)
      .def("__exit__", &ForwardContext::exit);

  py::class_<MemoryBudget, std::shared_ptr<MemoryBudget>>(m, "MemoryBudget", R"(
Keeps the steps of a training loop within a memory budget.

The model stays as it is: what autograd saves is evicted and recomputed, or waits in a file, and
gradients are those of plain training, bit for bit. Parameters and optimizer are not touched.

    budget = fleet.MemoryBudget("8GiB")                  # or "60%", or "50% of plain"
    for batch in data:
        loss = budget.step(lambda: model(**batch).loss)  # forward and backward
        optimizer.step(); optimizer.zero_grad()

budget: a size ("8GiB", or a number of bytes); a fraction of what the process may have ("60%"); or of what plain training
    takes ("50% of plain"), known after the second step. It counts all CPU tensors made while the
    budget lives, and those that the forward reads.
offload: values may wait in a file.

The first two steps evict on demand, the second is measured, and from the third on a plan is
followed. Batches of other shapes are measured again; pass `samples` to give them plans of their own.
)")
      .def(py::init([](const py::object& budget, bool offload) {
             return std::make_shared<MemoryBudget>(
                 MemoryBudgetOptions{.budget = budget_text(budget), .offload = offload});
           }),
           py::arg("budget"), py::kw_only(), py::arg("offload") = false)
      .def("step", &step, py::arg("loss"), py::kw_only(), py::arg("samples") = 0, Release(), R"(
Calls `loss()`, which runs the forward and returns the loss, and then backward. Returns the loss,
detached.

Where memory is short, gradients, generators (torch's, NumPy's, Python's) and the tensors that the
forward wrote to are restored, and `loss` is called again by another plan: what else it changes, it
changes again. Raises fleet.Error where the budget is too small.
)")
      .def(
          "forward",
          [](std::shared_ptr<MemoryBudget> self, int64_t samples) {
            return ForwardContext(std::move(self), samples);
          },
          py::kw_only(), py::arg("samples") = 0, R"(
For loops that call backward themselves:

    with budget.forward():
        loss = model(**batch).loss
    loss.backward()

The budget is in force in the block and in that backward. Where memory is short, torch.OutOfMemoryError is
raised, and the next step evicts more. A backward inside the block is within the budget too, but
such steps are never planned.
)")
      .def_property_readonly("report", &MemoryBudget::report, "What the last step took.")
      .def_property_readonly("attempts", &MemoryBudget::attempts,
                             "How often the forward of the last step ran.")
      .def_property_readonly(
          "plan", [](const MemoryBudget& self) { return PlanView::of(self, 0); },
          "The plan that steps follow; None: none yet. A picture in a notebook.")
      .def(
          "plan_for",
          [](const MemoryBudget& self, int64_t samples) { return PlanView::of(self, samples); },
          py::arg("samples"), "The plan for batches of so many samples; None: none yet.");

  m.def("recompute", &recompute, py::arg("fn"), R"(
Calls fn(*args, **kwargs) and keeps only its inputs and what it returns; backward recomputes the
rest by calling its ops again, not `fn`. Gradients, buffers and random numbers are those of a plain
call.

    y = fleet.recompute(block, x)
)");
  m.def("checkpoint", &fleet::checkpoint, py::arg("x"), py::arg("name"), R"(
Names a tensor at which recompute_configs["checkpoints"] may cut the forward; returns it.

    x = fleet.checkpoint(layer(x), "encoder.layer.3")
)");

  // For tests.
  auto testing = m.def_submodule("testing", "What tests look at.");
  testing.def("process_state", [] {
    return py::dict(py::arg("engine") = reinterpret_cast<uintptr_t>(compat::default_engine()),
                    py::arg("allocator") = reinterpret_cast<uintptr_t>(c10::GetCPUAllocator()));
  });
  testing.def("counted", [] { return memory::BudgetAllocator::cpu().counter().live(); });
  testing.def("peak", [] { return memory::BudgetAllocator::cpu().counter().peak(); });
  testing.def("reset_peak", [] { memory::BudgetAllocator::cpu().counter().reset_peaks(); });
  testing.def("replayed_ops", [] { return memory::replay_totals().ops; });
  py::class_<memory::BudgetAllocatorScope>(testing, "Counting").def(py::init([] {
    return std::make_unique<memory::BudgetAllocatorScope>(memory::BudgetAllocator::cpu());
  }));
}

}  // namespace fleet::python
