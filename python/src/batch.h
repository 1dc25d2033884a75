// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "bindings.h"

namespace fleet::python {

/// Tensors in tuples, lists, dictionaries, and in what wraps a dictionary, such as the
/// BatchEncoding of a tokenizer; with the samples in their first dimension.
class Batch {
 public:
  explicit Batch(py::object tree);
  ~Batch();
  Batch(const Batch& other);
  Batch(Batch&&) = default;

  int64_t size() const { return samples_; }
  /// Called by C++, without the GIL.
  Batch slice(int64_t begin, int64_t end) const;
  const py::object& tree() const { return tree_; }

 private:
  void count(const torch::Tensor& tensor);

  py::object tree_;
  int64_t samples_ = -1;
};

}  // namespace fleet::python
