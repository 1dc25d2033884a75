// SPDX-License-Identifier: Apache-2.0
#include "batch.h"

#include <functional>

#include "fleet/core/error.h"
#include "fleet/core/text/format.h"

namespace fleet::python {
namespace {

// Calls `fn` for every leaf; returns a tree of what it returns.
py::object map_leaves(const py::object& tree, const std::function<py::object(py::object)>& fn) {
  const auto user_dict = py::module_::import("collections").attr("UserDict");
  const py::cpp_function is_wrapped(
      [&](const py::object& node) { return py::isinstance(node, user_dict); });
  const py::cpp_function visit([&](const py::object& leaf) -> py::object {
    if (!py::isinstance(leaf, user_dict)) return fn(leaf);
    auto copy = py::module_::import("copy").attr("copy")(leaf);
    copy.attr("data") = map_leaves(leaf.attr("data"), fn);
    return copy;
  });
  return py::module_::import("torch.utils._pytree")
      .attr("tree_map")(visit, tree, py::arg("is_leaf") = is_wrapped);
}

}  // namespace

Batch::Batch(py::object tree) : tree_(std::move(tree)) {
  map_leaves(tree_, [&](py::object leaf) {
    if (THPVariable_Check(leaf.ptr())) count(THPVariable_Unpack(leaf.ptr()));
    return leaf;
  });
  if (samples_ < 0) {
    throw UsageError("batch", "the batch has no tensor with samples",
                     "use minimize(loss) for what is not a tensor, or a tuple or dictionary of "
                     "them");
  }
}

Batch::~Batch() {
  const py::gil_scoped_acquire gil;
  tree_ = py::object();
}

Batch::Batch(const Batch& other) : samples_(other.samples_) {
  const py::gil_scoped_acquire gil;
  tree_ = other.tree_;
}

Batch Batch::slice(int64_t begin, int64_t end) const {
  const py::gil_scoped_acquire gil;
  return Batch(map_leaves(tree_, [&](py::object leaf) -> py::object {
    if (!THPVariable_Check(leaf.ptr())) return leaf;
    const auto& tensor = THPVariable_Unpack(leaf.ptr());
    return tensor.dim() == 0 ? leaf : py::cast(tensor.narrow(0, begin, end - begin));
  }));
}

void Batch::count(const torch::Tensor& tensor) {
  if (tensor.dim() == 0) return;
  if (samples_ >= 0 && tensor.size(0) != samples_) {
    throw UsageError("batch",
                     format("tensors of the batch have {} and {} samples in their first "
                            "dimension",
                            samples_, tensor.size(0)),
                     "put the samples first in every tensor");
  }
  samples_ = tensor.size(0);
}

}  // namespace fleet::python
