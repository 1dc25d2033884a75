// SPDX-License-Identifier: Apache-2.0
#include "fleet/comm/communicator.h"
#include "fleet/comm/world.h"
#include "fleet/core/error.h"
#include "fleet/core/process/memory_limit.h"
#include "fleet/core/text/byte_size.h"
#include "fleet/core/text/format.h"
#include "fleet/memory/allocator/budget_allocator.h"
#include "fleet/memory/allocator/budget_amount.h"
#include "fleet/memory/plan/plan_picture.h"
#include "fleet/memory/plan/planner.h"
#include "fleet/memory/plan/profile/meta_profile.h"

#include "bindings.h"
#include "budget_text.h"
#include "gil.h"
#include "loss.h"
#include "plan_view.h"

namespace fleet::python {

std::string budget_text(const py::object& budget) {
  if (py::isinstance<py::str>(budget)) return budget.cast<std::string>();
  const bool is_whole = py::isinstance<py::int_>(budget) && !py::isinstance<py::bool_>(budget);
  const auto text = std::string(py::str(budget));
  if (is_whole && memory::BudgetAmount::parse(text)) return text;
  throw UsageError("memory",
                   format("the budget is {}{}", std::string(py::str(budget)),
                          is_whole ? " bytes" : ", which is no amount of memory"),
                   "write a size like \"8GiB\" or a number of bytes, \"60%\" of what this process "
                   "may have, or \"50% of plain\"");
}

std::optional<PlanView> PlanView::of(const MemoryBudget& budget, int64_t samples) {
  auto plan = budget.plan(samples);
  if (!plan) return {};
  return PlanView{std::move(plan), budget.profile(samples)};
}

std::string PlanView::text() const {
  return format("{}; predicted peak {} (plain training {}), {:+.1f} % time", plan->describe(),
                byte_size_text(plan->predicted_peak), byte_size_text(plan->plain_peak),
                100 * (plan->predicted_seconds / plan->plain_seconds - 1));
}

std::string PlanView::svg() const {
  return memory::draw_plan(*profile, *plan,
                           format("one step within {}", byte_size_text(plan->budget)));
}

namespace {

// A scope for `with`, so that meta tensors made inside are counted.
class MetaCounting {
 public:
  void enter() { scope_.emplace(memory::BudgetAllocator::meta()); }
  void exit(const py::args& /*error*/) { scope_.reset(); }

 private:
  std::optional<memory::BudgetAllocatorScope> scope_;
};

PlanView plan_on_meta(const py::object& loss, const py::object& given, double gflops,
                      double bandwidth) {
  const auto budget = budget_text(given);
  const auto amount = memory::BudgetAmount::parse(budget);
  if (!amount) {
    throw UsageError("plan", format("'{}' is no amount of memory", budget),
                     memory::BudgetAmount::fix_for(budget));
  }
  auto profile = std::make_shared<memory::StepProfile>();
  {
    const ReleaseGil no_gil;
    *profile = memory::profile_on_meta(
        [&] {
          const py::gil_scoped_acquire gil;
          return loss_tensor(call_python(loss));
        },
        {.flops = gflops * 1e9, .bytes = bandwidth * 1e9});
  }
  const auto plain = memory::keep_everything(*profile);
  const auto bytes =
      amount->unit == memory::BudgetAmount::Unit::kFractionOfPlain
          ? static_cast<int64_t>(static_cast<double>(plain.predicted_peak) * amount->fraction)
          : amount->of(memory_limit(), is_initialized() ? world()->ranks_on_host() : 1);
  auto plan = memory::make_plan(*profile, {.budget = bytes});
  if (!plan) {
    const auto least = memory::least_memory(*profile).predicted_peak;
    throw Error(
        "plan",
        format("no plan holds this step within {}: plain training takes {}, and the least "
               "is {}",
               byte_size_text(bytes), byte_size_text(plain.predicted_peak), byte_size_text(least)),
        format("give it {}, or use a smaller batch", memory::budget_text(least)));
  }
  return {std::make_shared<const memory::Plan>(std::move(*plan)), std::move(profile)};
}

}  // namespace

void bind_plan(py::module_& m) {
  py::class_<PlanView>(m, "Plan", "How a step keeps within a memory budget.")
      .def_property_readonly(
          "budget", [](const PlanView& self) { return self.plan->budget; }, "bytes")
      .def_property_readonly(
          "predicted_peak", [](const PlanView& self) { return self.plan->predicted_peak; },
          "bytes, parameters included")
      .def_property_readonly(
          "plain_peak", [](const PlanView& self) { return self.plan->plain_peak; },
          "bytes that plain training takes")
      .def_property_readonly(
          "predicted_seconds", [](const PlanView& self) { return self.plan->predicted_seconds; },
          "of one forward and backward")
      .def_property_readonly(
          "plain_seconds", [](const PlanView& self) { return self.plan->plain_seconds; },
          "of one forward and backward of plain training")
      .def_property_readonly(
          "offloaded_bytes", [](const PlanView& self) { return self.plan->offloaded_bytes; },
          "that wait in a file")
      .def_property_readonly(
          "segments", [](const PlanView& self) { return self.plan->segments.size(); },
          "of the forward")
      .def("svg", &PlanView::svg, "Memory over the step, and what other budgets would cost.")
      .def("_repr_html_", &PlanView::svg)
      .def("__repr__", [](const PlanView& self) { return "Plan: " + self.text(); })
      .def("__str__", &PlanView::text);

  py::class_<MetaCounting>(m, "MetaCounting")
      .def(py::init<>())
      .def("__enter__", &MetaCounting::enter)
      .def("__exit__", &MetaCounting::exit);
  m.def("plan_on_meta", &plan_on_meta, py::arg("loss"), py::arg("budget"), py::arg("gflops"),
        py::arg("bandwidth"));
}

}  // namespace fleet::python
