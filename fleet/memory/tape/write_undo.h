// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include <torch/types.h>

namespace fleet::memory {

/// Copies of what a recorded forward overwrites that was there before it: running statistics of
/// batch norm, caches, counters. With `restore` the forward can be run again as if it had not been.
/// Writes that the dispatcher does not see (`data_ptr`, NumPy) are not undone.
class WriteUndo {
 public:
  /// The whole storage of `tensor` is about to be written to for the first time.
  void add(const torch::Tensor& tensor);
  void restore();

 private:
  struct Copy {
    c10::Storage storage;
    torch::Tensor bytes;
  };
  std::vector<Copy> copies_;
};

}  // namespace fleet::memory
