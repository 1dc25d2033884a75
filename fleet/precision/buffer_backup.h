// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include <torch/types.h>

#include "fleet/core/model_handle.h"

namespace fleet::precision {

/// A model's buffers as they were: forward moves the statistics of batch norm, and an update that
/// is skipped must not leave an overflow in them.
///
///   BufferBackup backup(net);
///   backup.save();
///   ...
///   if (overflow) backup.restore();
class BufferBackup {
 public:
  explicit BufferBackup(const ModelHandle& model);

  void save();
  void restore();

 private:
  std::vector<torch::Tensor> buffers_;
  std::vector<torch::Tensor> saved_;
};

}  // namespace fleet::precision
