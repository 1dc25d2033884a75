// SPDX-License-Identifier: Apache-2.0
#include "fleet/ops/fast_ops.h"

#include <pybind11/stl.h>

#include <map>
#include <memory>

#include "fleet/core/error.h"

#include "bindings.h"

namespace fleet::python {
namespace {

// A `with` block, which may be entered again once it was left.
class FastOpsContext {
 public:
  explicit FastOpsContext(std::vector<std::string> exclude)
      : ops_(FastOpsOptions{.exclude = std::move(exclude)}) {}
  FastOpsContext& enter() {
    if (scope_) {
      throw Error("fast_ops", "this block is entered already", "make one fast_ops() per thread");
    }
    scope_ = std::make_unique<FastOpsScope>(ops_);
    return *this;
  }
  void exit(const py::args& /*exception*/) { scope_.reset(); }

  std::map<std::string, std::pair<int64_t, int64_t>> counts() const {
    std::map<std::string, std::pair<int64_t, int64_t>> result;
    for (const auto& count : ops_.counts()) result[count.op] = {count.replaced, count.kept};
    return result;
  }
  std::string summary() const { return ops_.summary(); }

 private:
  FastOps ops_;
  std::unique_ptr<FastOpsScope> scope_;
};

}  // namespace

void bind_fast_ops(py::module_& m) {
  py::class_<FastOpsContext>(m, "fast_ops",
                             R"(Inside of this block, ops of an unmodified model run as Fleet's.

    fast = fleet.fast_ops()
    with fast:
        loss = model(**batch).loss
    loss.backward()
    print(fast.summary())      # what was replaced, and what was not and why

dropout, scaled_dot_product_attention, gelu, layer_norm, rms_norm and cross_entropy are replaced as
the model calls them, where gradients are on. Results are torch's to rounding; dropout draws from
another random stream than torch's.)")
      .def(py::init<std::vector<std::string>>(), py::kw_only(),
           py::arg("exclude") = std::vector<std::string>(),
           "exclude: ops that stay torch's, such as \"layer_norm\".")
      .def("__enter__", &FastOpsContext::enter, py::return_value_policy::reference)
      .def("__exit__", &FastOpsContext::exit)
      .def_property_readonly("counts", &FastOpsContext::counts,
                             "Calls by op: (replaced, left to torch).")
      .def("summary", &FastOpsContext::summary, "One line: what was replaced, and what was not.");
}

}  // namespace fleet::python
