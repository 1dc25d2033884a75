// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <vector>

#include <torch/types.h>

#include "fleet/snapshot/snapshot_tensors.h"

namespace fleet {

/// A training's tensors in memory of their own, which is used again for the next copy. Whole
/// storages are copied, such as a group of the arena, at the speed of memory.
class SnapshotCopy {
 public:
  /// The same tensors each time; the first call allocates.
  void take(const SnapshotTensors& live);
  const SnapshotTensors& tensors() const { return copy_; }

 private:
  using Tensors = std::vector<NamedTensor>;

  void allocate(const Tensors& live, Tensors& copy);
  torch::Tensor staging_for(const torch::Tensor& live);
  void collect(const Tensors& live, const Tensors& copy);
  void copy_storages();

  struct StagingBuffer {
    const char* from = nullptr;  // of the storage that it is for; null: none in this copy
    torch::Tensor bytes;
  };
  SnapshotTensors copy_;
  std::map<const void*, StagingBuffer> staging_;  // by the storage that they are for
  bool is_made_ = false;
};

}  // namespace fleet
